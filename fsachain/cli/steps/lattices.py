"""From lattices of Kaldi to chunks with numerators: supervision of audio without transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fsachain.cli.config import Experiment
from fsachain.cli.steps.bad_data import BadData
from fsachain.cli.steps.lang import Lang
from fsachain.cli.steps.supervision import Copy, SupervisionSummary, copies_of, cut_alike, write_supervision
from fsachain.data.kaldi_dir import DataDir
from fsachain.errors import ConfigError, DataError
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk
from fsachain.graph.lexicon_files import read_phones
from fsachain.graph.phone_lattice import PhoneLattice
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.lattice import read_lattice
from fsachain.kaldi.lattice_arrays import CompactLattice
from fsachain.kaldi.lattice_graphs import phone_lattice
from fsachain.kaldi.transitions import TransitionModel, read_transition_model

DEFAULT_LM_SCALE = 0.5


def make_lattice_supervision(
    experiment: Experiment,
    lang: Lang,
    data: DataDir,
    lattices: Sequence[str],
    model: Path,
    out: Path,
    normalization: Fsa,
    *,
    phones: Path | None = None,
    lm_scale: float | None = None,
    lattice_subsampling: int = 3,
    cache: Path | None = None,
    num_workers: int = 1,
    jobs: int = 1,
    bad_data: BadData | None = None,
) -> SupervisionSummary:
    """Make numerators of lattices and write them to one npz file, chunk by chunk or, with weights, utterance by utterance.

    With `supervision.chunk_frames` the paths of the lattice that the tolerances allow form a set, which is cut; without
    (null) they keep the weights of the lattice. Copies at other speeds are made as in `make_supervision`.

    Args:
        experiment: sections supervision, perturbation, features and network.
        lang: the tree may be another than that of the model that decoded.
        data: the utterances; those without a lattice are left out and named.
        lattices: tables as for `read_table`, `.gz` too.
        model: transition model of the lattices.
        out: the npz file.
        normalization: of the denominator.
        phones: phones.txt of the model; None: its phones are those of `lang`, number by number.
        lm_scale: factor on graph costs, for whole utterances; None: 0.5.
        lattice_subsampling: input frames per frame of the lattice: 3 for chain models, 1 for GMMs.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.
        jobs: processes that make numerators.
        bad_data: as for `make_supervision`.

    Raises:
        ConfigError: an LM scale for chunks, which have no weights.
        DataError: a file that cannot be read, phones that `lang` lacks, or no utterance is left.
    """
    if lm_scale is not None and experiment.supervision.chunk_frames is not None:
        raise ConfigError(
            f"lm_scale = {lm_scale}: chunks of {experiment.supervision.chunk_frames} frames count all paths alike; weights "
            "need whole utterances (supervision.chunk_frames: null)"
        )
    transitions = read_transition_model(model)
    maker = LatticeMaker(
        experiment,
        lang,
        normalization,
        transitions,
        _phone_ids(lang, transitions, phones),
        DEFAULT_LM_SCALE if lm_scale is None else lm_scale,
        lattice_subsampling,
    )
    found = _read_all(lattices, {utterance.id for utterance in data})
    copies = copies_of(experiment, data, cache, num_workers, bad_data)
    return write_supervision(out, copies, found, maker, ", ".join(lattices), jobs)


def _read_all(tables: Iterable[str], wanted: set[str]) -> dict[str, CompactLattice]:
    found: dict[str, CompactLattice] = {}
    for table in tables:
        for name, lattice in read_table(table, read_lattice):
            if name in found:
                raise DataError(f"{table}: the lattice of {name!r} is in another table too")
            if name in wanted:
                found[name] = lattice
    return found


def _phone_ids(lang: Lang, model: TransitionModel, phones: Path | None) -> npt.NDArray[np.int32]:
    """Phone id of `lang` for each phone id of the model; 0 for epsilon."""
    known = {name: number for number, name in enumerate(lang.lexicon.phones, 1)}
    names = lang.lexicon.phones if phones is None else read_phones(phones)
    if len(names) != model.num_phones:
        where = "the language folder" if phones is None else str(phones)
        raise DataError(f"{model.name} has {model.num_phones} phones; expected {len(names)}, as in {where}")
    lacking = [name for name in names if name not in known]
    if lacking:
        raise DataError(
            f"{phones}: the language folder lacks the phone {lacking[0]!r}, and {len(lacking) - 1} more"
        )
    return np.array([0, *(known[name] for name in names)], dtype=np.int32)


@dataclass(frozen=True, eq=False)
class LatticeMaker:
    """Turns a lattice and copies of its utterance into chunks; the fields are as for `make_lattice_supervision`."""

    experiment: Experiment
    lang: Lang
    normalization: Fsa
    model: TransitionModel
    phone_ids: npt.NDArray[np.int32]
    lm_scale: float
    lattice_subsampling: int

    def __call__(self, item: tuple[CompactLattice, tuple[Copy, ...]]) -> list[list[Chunk]]:
        """The chunks of each copy; an `FsachainError` names the copy."""
        lattice, copies = item
        found = phone_lattice(
            lattice,
            self.model,
            lm_scale=self.lm_scale,
            subsampling=self.lattice_subsampling,
            name=copies[0].id,
        )
        labels = self.phone_ids[found.phones.ilabel]
        found = replace(found, phones=replace(found.phones, ilabel=labels, olabel=labels))
        options = self.experiment.supervision
        network = self.experiment.network_spec(self.lang.tree.num_pdfs)
        subsampling = network.subsampling
        times = {
            "left_tolerance": options.left_tolerance,
            "right_tolerance": options.right_tolerance,
            "subsampling": subsampling,
            "time_offset": network.time_offset,
        }
        own = [(_in_time(found, copy, subsampling), copy.num_frames) for copy in copies]
        if options.chunk_frames is not None:
            sets = [one.supervision(frames, self.lang.tree, **times) for one, frames in own]
            return cut_alike(sets, options, subsampling, self.normalization)
        return [
            [
                _whole(
                    one,
                    -(-frames // subsampling),
                    one.numerator(frames, self.lang.tree, normalization=self.normalization, **times),
                )
            ]
            for one, frames in own
        ]


def _whole(lattice: PhoneLattice, num_frames: int, fsa: Fsa) -> Chunk:
    return Chunk(lattice.name, 0, num_frames, num_frames, fsa, np.ones(num_frames, dtype=np.float32))


def _in_time(lattice: PhoneLattice, copy: Copy, subsampling: int) -> PhoneLattice:
    """The lattice of a copy: times divided by its speed; ends at most where it ends, unless they lie far off."""
    spans = np.round(lattice.spans / copy.speed).astype(np.int64)
    if spans[:, 1].max() <= copy.num_frames + int(np.ceil(subsampling / copy.speed)):
        spans = np.minimum(spans, [copy.num_frames - 1, copy.num_frames])
    return replace(lattice, spans=spans, name=copy.id)
