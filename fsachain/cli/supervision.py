"""From an alignment to chunks with numerators: what a second training takes in place of `num-graphs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsachain.cli.bad_data import BadData
from fsachain.cli.config import Experiment, SupervisionConfig
from fsachain.cli.lang import Lang
from fsachain.cli.parallel import collect
from fsachain.cli.training import perturbations
from fsachain.data.dataset import load_examples
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.align import aligned_phones
from fsachain.decode.ctm import CtmEntry, by_utterance, read_ctm
from fsachain.errors import ConfigError, DataError
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk, chunk_windows, make_chunks, num_chunks, save_chunks
from fsachain.graph.lexicon import read_phones
from fsachain.graph.phone_lattice import PhoneLattice
from fsachain.graph.supervision import AlignedPhone, Supervision, build_supervision
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.lattice import CompactLattice, phone_lattice, read_lattice
from fsachain.kaldi.transitions import TransitionModel, read_transition_model


@dataclass(frozen=True)
class SupervisionSummary:
    """What `make_supervision` wrote, and which utterances it left out, each with the reason."""

    num_utterances: int
    num_chunks: int
    num_arcs: int
    excluded: dict[str, str]

    def __str__(self) -> str:
        lines = [
            f"{self.num_utterances} utterances supervised, {self.num_chunks} chunks of all copies, "
            f"{self.num_arcs} arcs, {len(self.excluded)} utterances excluded"
        ]
        return "\n  ".join([*lines, *self.excluded.values()])


def make_supervision(
    experiment: Experiment,
    lang: Lang,
    data: DataDir,
    alignment: Path,
    out: Path,
    normalization: Fsa,
    *,
    cache: Path | None = None,
    num_workers: int = 1,
    jobs: int = 1,
    bad_data: BadData | None = None,
) -> SupervisionSummary:
    """Cut aligned utterances into chunks with numerators and write them to one npz file.

    Every copy of section `perturbation` gets chunks of its own; a copy at speed s takes the times of the
    original divided by s. An utterance of which one copy has no supervision is left out with all of them.

    Args:
        experiment: sections supervision, perturbation, features and network.
        lang: lexicon and tree.
        data: the utterances; those that the alignment lacks are left out and named.
        alignment: phones.ctm of `fsachain align`, or another CTM of phones.
        out: the npz file.
        normalization: of the denominator.
        cache: folder that keeps features between runs; they tell how long each copy is.
        num_workers: threads that compute features.
        jobs: processes that make supervisions.
        bad_data: with it utterances whose recordings cannot be used are left out; without, the first is an error.

    Raises:
        DataError: no utterance is left, or the alignment has a line that cannot be read.
    """
    copies = copies_of(experiment, data, cache, num_workers, bad_data)
    maker = AlignmentMaker(experiment, lang, normalization)
    return write_supervision(out, copies, by_utterance(read_ctm(alignment)), maker, str(alignment), jobs)


class Copy(NamedTuple):
    """One copy of an utterance: its id, its speed, and how many input frames it has."""

    id: str
    speed: float
    num_frames: int


def copies_of(
    experiment: Experiment,
    data: DataDir,
    cache: Path | None,
    num_workers: int,
    bad_data: BadData | None = None,
) -> dict[str, tuple[Copy, ...]]:
    """The copies of each utterance that section `perturbation` asks for; of those that can be used, with `bad_data`."""
    wanted = perturbations(experiment.perturbation, experiment.train.seed)
    if bad_data is None:
        settings: dict[str, Any] = {"cache_dir": cache, "num_workers": num_workers}
        variants = [load_examples(data, experiment.features, perturbation=one, **settings) for one in wanted]
    else:
        data, variants = bad_data.load(
            data, experiment.features, wanted, cache=cache, num_workers=num_workers
        )
    found: dict[str, tuple[Copy, ...]] = {utterance.id: () for utterance in data}
    for one, examples in zip(wanted, variants, strict=True):
        for name, example in zip(found, examples, strict=True):
            found[name] += (Copy(example.id, one.speed, example.num_frames),)
    return found


def write_supervision(
    out: Path,
    copies: Mapping[str, tuple[Copy, ...]],
    spoken: Mapping[str, Any],
    make: Callable[[tuple[Any, tuple[Copy, ...]]], list[list[Chunk]]],
    where: str,
    jobs: int,
) -> SupervisionSummary:
    """Make the chunks of all utterances and write them to one npz file.

    Args:
        out: the npz file.
        copies: by utterance.
        spoken: by utterance, what is known of it: an alignment, a lattice; those without are left out and named.
        make: from a pair of `spoken` and `copies` to the chunks of each copy.
        where: the file that `spoken` is from, for messages.
        jobs: processes.

    Raises:
        DataError: no utterance is left.
    """
    absent = {
        name: f"utterance {name!r}: is not in the alignment {where}" for name in copies if name not in spoken
    }
    items = [(name, (spoken[name], of_one)) for name, of_one in copies.items() if name in spoken]
    chunks, refused = collect(make, items, "supervision", jobs)
    excluded = absent | refused
    if not chunks:
        reason = next(iter(excluded.values()), "there are no utterances")
        raise DataError(f"{out}: no utterance has a supervision; the first reason: {reason}")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_chunks(out, chunks)
    every = [chunk for lists in chunks.values() for one in lists for chunk in one]
    return SupervisionSummary(len(chunks), len(every), sum(chunk.fsa.num_arcs for chunk in every), excluded)


class AlignmentMaker:
    """Turns aligned phones and copies into chunks, under the options of one experiment."""

    def __init__(self, experiment: Experiment, lang: Lang, normalization: Fsa) -> None:
        self.options = experiment.supervision
        self.lang = lang
        self.normalization = normalization
        self.frame_shift = experiment.features.frame_shift_ms / 1000.0
        network = experiment.network_spec(lang.tree.num_pdfs)
        self.subsampling, self.time_offset = network.subsampling, network.time_offset

    def __call__(self, item: tuple[Sequence[CtmEntry], tuple[Copy, ...]]) -> list[list[Chunk]]:
        """The chunks of each copy; an `FsachainError` names the copy."""
        entries, copies = item
        supervisions = [self.supervision(entries, copy) for copy in copies]
        return cut_alike(supervisions, self.options, self.subsampling, self.normalization)

    def supervision(self, entries: Sequence[CtmEntry], copy: Copy) -> Supervision:
        """The supervision of one copy; its id is in the message of an error."""
        phones = aligned_phones(entries, self.lang.lexicon.phones, self.frame_shift * copy.speed)
        return build_supervision(
            _clip(phones, copy.num_frames, math.ceil(self.subsampling / copy.speed)),
            copy.num_frames,
            self.lang.tree,
            left_tolerance=self.options.left_tolerance,
            right_tolerance=self.options.right_tolerance,
            subsampling=self.subsampling,
            time_offset=self.time_offset,
            name=copy.id,
        )


def cut_alike(
    copies: Sequence[Supervision], options: SupervisionConfig, subsampling: int, normalization: Fsa
) -> list[list[Chunk]]:
    """As many chunks for each copy as the longest needs, so that the k-th ones hold the same words."""
    lengths = [supervision.num_frames for supervision in copies]
    width, overlap = max(lengths), 0
    if options.chunk_frames is not None:
        width, overlap = (
            -(-frames // subsampling) for frames in (options.chunk_frames, options.overlap_frames)
        )
    count = max(num_chunks(length, width, min(overlap, width - 1)) for length in lengths)
    return [
        make_chunks(one, chunk_windows(one.num_frames, width, count), normalization=normalization)
        for one in copies
    ]


def _clip(phones: Sequence[AlignedPhone], num_frames: int, slack: int) -> list[AlignedPhone]:
    """The phones with ends at most `num_frames`, unless they lie farther off than `slack`.

    An alignment ends with its last output frame, up to two input frames after an utterance; those of a slow
    copy are more.
    """
    if not phones or phones[-1].end > num_frames + slack:
        return list(phones)
    return [AlignedPhone(p.phone, min(p.start, num_frames - 1), min(p.end, num_frames)) for p in phones]


# From lattices of Kaldi to chunks with numerators: supervision of audio without transcripts.

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
