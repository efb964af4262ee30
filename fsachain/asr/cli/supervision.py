"""Training on times that are known: supervise, kaldi supervise (chunks with numerators) and tie-tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from fsachain.asr.cli.config import Experiment, config_option
from fsachain.asr.cli.graphs import normalization_option
from fsachain.asr.cli.lang import Lang, lang_option
from fsachain.asr.cli.options import COUNT, DATA, FILE, OUT, command, option, track
from fsachain.asr.cli.resources import Resources, with_resources
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.decode.align import aligned_phones
from fsachain.asr.decode.ctm import CtmEntry, by_utterance, read_ctm
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.lattice import CompactLattice, phone_lattice, read_lattice
from fsachain.asr.kaldi.model import TransitionModel, read_transition_model
from fsachain.errors import ConfigError, DataError, but_for, counted
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import read_phones
from fsachain.graph.numerator import made_with
from fsachain.graph.supervision import (
    AlignedPhone,
    Chunk,
    Supervision,
    build_supervision,
    chunk_windows,
    make_chunks,
    num_chunks,
    save_chunks,
)
from fsachain.graph.tied_tree import BiphoneStatistics, build_tied_tree


class Copy(NamedTuple):
    """A copy of an utterance; `num_frames` are those of the input."""

    id: str
    speed: float
    num_frames: int


class Supervising(NamedTuple):
    """How supervision becomes chunks of output frames; `times` are the options of `build_supervision`."""

    experiment: Experiment
    lang: Lang
    normalization: Fsa
    times: dict[str, int]

    @classmethod
    def of(cls, experiment: Experiment, lang: Lang, normalization: Fsa) -> Supervising:
        network, options = experiment.network_spec(lang.tree.num_pdfs).sketch, experiment.supervision
        times = {
            "left_tolerance": options.left_tolerance,
            "right_tolerance": options.right_tolerance,
            "subsampling": network.subsampling,
            "time_offset": network.time_offset,
        }
        return cls(experiment, lang, normalization, times)

    def last_end(self, copy: Copy) -> int:
        """How far times may lie behind the end of a copy.

        An alignment ends with its last output frame, up to two input frames after an utterance; those of a slow
        copy are more.
        """
        return copy.num_frames + math.ceil(self.times["subsampling"] / copy.speed)

    def cut(self, copies: Sequence[Supervision]) -> list[list[Chunk]]:
        """As many chunks for each copy as the longest needs, so that the k-th ones hold the same words."""
        lengths = [supervision.num_frames for supervision in copies]
        options, width, overlap = self.experiment.supervision, max(lengths), 0
        if options.chunk_frames is not None:
            width = -(-options.chunk_frames // self.times["subsampling"])
            overlap = -(-options.overlap_frames // self.times["subsampling"])
        count = max(num_chunks(length, width, min(overlap, width - 1)) for length in lengths)
        return [
            make_chunks(one, chunk_windows(one.num_frames, width, count), normalization=self.normalization)
            for one in copies
        ]


def _write(
    out: Path,
    how: Supervising,
    data: DataDir,
    spoken: Mapping[str, Any],
    make: Callable[..., list[list[Chunk]]],
    where: str,
    resources: Resources,
) -> str:
    """Make the chunks of all utterances and write them to one npz file; returns a summary.

    Every copy of section `perturbation` gets chunks of its own, at speed s with the times of the original divided by s. An
    utterance of which one copy has no supervision is left out with all of them. `spoken` is what is known of each utterance,
    an alignment or a lattice, and `where` the file it is from; utterances without are left out and named.
    `make(how, utterance, (spoken, copies))` gives the chunks of each copy.
    """
    experiment, lang = how.experiment, how.lang
    wanted = experiment.perturbation.copies(experiment.train.seed)
    data, variants = resources.load(data, experiment.features, wanted)
    items, faults = [], []
    for utterance, *versions in zip(data, *variants, strict=True):
        name = utterance.id
        copies = tuple(
            Copy(one.id, copy.speed, one.num_frames) for one, copy in zip(versions, wanted, strict=True)
        )
        if name in spoken:
            items.append((name, (spoken[name], copies)))
        else:
            faults.append(utterance.unusable("no alignment", f": is not in the alignment {where}").fault)
    chunks, refused = resources.collect(partial(make, how), items, "supervision")
    faults += refused
    resources.leave_out(faults, len(chunks), f"{out}: chunks")
    save_chunks(out, chunks, made_with(lang.lexicon, lang.tree))
    arcs = [chunk.fsa.num_arcs for lists in chunks.values() for one in lists for chunk in one]
    return (
        f"{counted(len(chunks), 'utterance')} supervised, {counted(len(arcs), 'chunk')} of all copies, "
        f"{counted(sum(arcs), 'arc')}{but_for(len(faults))}"
    )


normalizing_option = normalization_option("", required=True)


@command(data=DATA, alignment=FILE, out=OUT)
def supervise(
    data: DataDir,
    alignment: Path,
    out: Path,
    lang: Lang = lang_option,
    normalization: Fsa = normalizing_option,
    experiment: Experiment = config_option,
    resources: Resources = with_resources("cache", "workers", "jobs", "bad_data", "commands", beside=True),
) -> str:
    """Make numerators whose times come from an alignment, in chunks: for a second training.

    In: DATA, a Kaldi data directory, and ALIGNMENT, the phones.ctm that `fsachain align --den` wrote for it (or
    another CTM of phones; `fsachain kaldi ctm` makes one of Kaldi's alignments); the sections supervision, perturbation,
    features and network of the configuration. Utterances that the alignment lacks or does not fit are named and left
    out. Lattices: `fsachain kaldi supervise`.
    Out: OUT, one npz file, which `fsachain train` takes in place of numerators.
    Example: fsachain supervise train aligned/phones.ctm graphs/chunks.npz --lang lang --den graphs
    """
    how = Supervising.of(experiment.fitted(data), lang, normalization)
    spoken = by_utterance(read_ctm(alignment))
    return _write(out, how, data, spoken, _chunks_of_alignment, str(alignment), resources)


def _chunks_of_alignment(
    how: Supervising, _: str, item: tuple[Sequence[CtmEntry], tuple[Copy, ...]]
) -> list[list[Chunk]]:
    entries, copies = item
    found, shift = [], how.experiment.features.frame_shift_ms / 1000.0
    for copy in copies:
        phones = aligned_phones(entries, how.lang.lexicon.phones, shift * copy.speed)
        if phones and phones[-1].end <= how.last_end(copy):
            last = copy.num_frames
            phones = [AlignedPhone(p.phone, min(p.start, last - 1), min(p.end, last)) for p in phones]
        found.append(build_supervision(phones, copy.num_frames, how.lang.tree, name=copy.id, **how.times))
    return how.cut(found)


def supervise_by_lattices(
    data: DataDir,
    model: Path,
    out: Path,
    lattices: tuple[str, ...],
    lang: Lang = lang_option,
    normalization: Fsa = normalizing_option,
    phones: Path | None = option(FILE, "phones.txt of MODEL; without it its phones are those of --lang."),
    lm_scale: float | None = option(
        click.FloatRange(min=0),
        "Factor on graph costs, for whole utterances (supervision.chunk_frames: null): 0.5 unless given.",
    ),
    lattice_subsampling: int = option(
        COUNT, "Input frames per frame of the lattices: 3 for chain models, 1 for GMMs.", default=3
    ),
    experiment: Experiment = config_option,
    resources: Resources = with_resources("cache", "workers", "jobs", "bad_data", "commands", beside=True),
) -> str:
    """Make numerators of lattices, for audio without transcripts.

    In: DATA, a Kaldi data directory, whose text may hold names alone; MODEL, the 0.trans_mdl or final.mdl that decoded;
    LATTICES, lat.*.gz; the sections supervision (tolerances, chunks), perturbation, features and network of the
    configuration. Utterances without lattice or path are named and left out.
    Out: OUT, one npz file, which `fsachain train` takes in place of numerators.
    Example: fsachain kaldi supervise train exp/tri3/final.mdl chunks.npz exp/tri3_lats/lat.1.gz --lang lang --den graphs
    """
    if lm_scale is not None and experiment.supervision.chunk_frames is not None:
        raise ConfigError(
            f"lm_scale = {lm_scale}: chunks of {counted(experiment.supervision.chunk_frames, 'frame')} "
            "count all paths alike; weights "
            "need whole utterances (supervision.chunk_frames: null)"
        )
    transitions = read_transition_model(model)
    how = Supervising.of(experiment.fitted(data), lang, normalization)
    scale = 0.5 if lm_scale is None else lm_scale
    options = {"model": transitions, "lm_scale": scale, "subsampling": lattice_subsampling}
    phone_ids, names = _phone_ids(lang, transitions, phones)
    make = partial(_chunks_of_lattice, phone_ids=phone_ids, names=names, options=options)
    wanted = {utterance.id for utterance in data}
    found: dict[str, CompactLattice] = {}
    for table in lattices:
        for name, lattice in read_table(table, read_lattice):
            if name in found:
                raise DataError(f"{table}: the lattice of {name!r} is in another table too")
            if name in wanted:
                found[name] = lattice
    return _write(out, how, data, found, make, ", ".join(lattices), resources)


def _phone_ids(
    lang: Lang, model: TransitionModel, phones: Path | None
) -> tuple[npt.NDArray[np.int32], Sequence[str]]:
    """Phone id of `lang` for each phone id of the model; 0 for epsilon, -k for the model's phone k if `lang` lacks it.

    With the names of the model's phones: one that `lang` lacks matters only in a lattice that has it.
    """
    known = {name: number for number, name in enumerate(lang.lexicon.phones, 1)}
    names = lang.lexicon.phones if phones is None else read_phones(phones)
    if len(names) != model.num_phones:
        where = f"{lang.name}; its phones.txt goes to --phones" if phones is None else str(phones)
        raise DataError(
            f"{model.name} has {counted(model.num_phones, 'phone')}; expected {len(names)}, as in {where}"
        )
    ids = [known.get(name, -number) for number, name in enumerate(names, 1)]
    return np.array([0, *ids], dtype=np.int32), names


def _chunks_of_lattice(
    how: Supervising,
    _: str,
    item: tuple[CompactLattice, tuple[Copy, ...]],
    *,
    phone_ids: npt.NDArray[np.int32],
    names: Sequence[str],
    options: dict[str, Any],
) -> list[list[Chunk]]:
    """Chunks of the set of paths that the tolerances allow; whole utterances keep the weights of the lattice."""
    lattice, copies = item
    found = phone_lattice(lattice, name=copies[0].id, **options)
    labels = phone_ids[found.phones.ilabel]
    if (lacking := labels[labels < 0]).size:
        raise DataError(
            f"utterance {copies[0].id!r}: its lattice has the phone {names[-lacking[0] - 1]!r}, which {how.lang.name} lacks"
        )
    found = replace(found, phones=replace(found.phones, ilabel=labels, olabel=labels))
    supervisions, whole = [], []
    for copy in copies:
        # Times divided by the speed; ends at most where the copy ends, unless they lie far off.
        spans = np.round(found.spans / copy.speed).astype(np.int64)
        if spans[:, 1].max() <= how.last_end(copy):
            spans = np.minimum(spans, [copy.num_frames - 1, copy.num_frames])
        own = replace(found, spans=spans, name=copy.id)
        if how.experiment.supervision.chunk_frames is not None:
            supervisions.append(own.supervision(copy.num_frames, how.lang.tree, **how.times))
            continue
        fsa = own.numerator(copy.num_frames, how.lang.tree, normalization=how.normalization, **how.times)
        frames = -(-copy.num_frames // how.times["subsampling"])
        whole.append([Chunk(copy.id, 0, frames, frames, fsa, np.ones(frames, dtype=np.float32))])
    return whole or how.cut(supervisions)


@command(data=DATA, alignment=FILE, out=OUT)
def tie_tree(
    data: DataDir,
    alignment: Path,
    out: Path,
    lang: Lang = lang_option,
    num_pdfs: int = option(COUNT, "Leaves of the tree, at most.", required=True),
    min_frames: float = option(float, "The fewest frames of each side of a split.", default=100.0),
    experiment: Experiment = config_option,
    resources: Resources = with_resources("cache", "workers", "bad_data", "commands"),
) -> str:
    """Tie the left biphones of a language by the aligned frames of an end-to-end model.

    In: DATA, a Kaldi data directory, and ALIGNMENT, the phones.ctm that `fsachain align` wrote for it; the sections
    features and network of the configuration.
    Out: language folder OUT, the lexicon of --lang with the new tree.
    Example: fsachain tie-tree train aligned/phones.ctm tied --lang lang --num-pdfs 30
    """
    spoken = by_utterance(read_ctm(alignment))
    phones, topology = lang.lexicon.phones, lang.tree.topology
    experiment = experiment.fitted(data)
    network = experiment.network_spec(lang.tree.num_pdfs).sketch
    statistics = BiphoneStatistics(len(phones), topology, experiment.features.num_features)
    data, (examples,) = resources.load(data, experiment.features)
    aligned = [example for example in examples if example.id in spoken]
    lacking = [one for one in data if one.id not in spoken]
    faults = [one.unusable("no alignment", f": is not in {alignment}").fault for one in lacking]
    resources.leave_out(faults, len(aligned), str(alignment))
    num_frames = 0
    for example in track(aligned, "statistics"):
        # The features at the centres of the output frames.
        features = example.features[network.time_offset :: network.subsampling]
        spans = aligned_phones(spoken[example.id], phones, experiment.features.frame_shift_ms / 1000.0)
        statistics.accumulate(features, _output_spans(spans, network.subsampling, len(features)))
        num_frames += len(features)
    tree = build_tied_tree(
        phones,
        topology,
        statistics,
        num_pdfs=num_pdfs,
        min_frames=min_frames,
        context_independent=lang.context_independent,
    )
    made = replace(lang, tree=tree)
    made.save(out)
    return f"{made}, tied from {counted(num_frames, 'output frame')} of {counted(len(aligned), 'utterance')}"


def _output_spans(phones: list[AlignedPhone], subsampling: int, num_frames: int) -> list[AlignedPhone]:
    """Spans in output frames: frame t belongs to the phone at its centre, input frame subsampling * t + offset."""

    def frame(time: int) -> int:
        return min(num_frames, max(0, math.ceil((time - subsampling // 2) / subsampling)))

    return [AlignedPhone(phone.phone, frame(phone.start), frame(phone.end)) for phone in phones]
