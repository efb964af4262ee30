"""A language folder whose tree is tied from an alignment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fsachain.cli.config import Experiment
from fsachain.cli.progress import track
from fsachain.cli.steps.bad_data import BadData
from fsachain.cli.steps.lang import Lang, save_lang
from fsachain.data.dataset import load_examples
from fsachain.data.kaldi_dir import DataDir
from fsachain.decode.align import aligned_phones
from fsachain.decode.ctm import ByUtterance, read_ctm
from fsachain.errors import DataError
from fsachain.graph.supervision import AlignedPhone
from fsachain.graph.tree_building import BiphoneStatistics, build_tied_tree


@dataclass(frozen=True)
class TreeSummary:
    """What `make_tied_tree` made it of."""

    lang: Lang
    num_utterances: int
    num_frames: int

    def __str__(self) -> str:
        return f"{self.lang}, tied from {self.num_frames} output frames of {self.num_utterances} utterances"


def make_tied_tree(
    experiment: Experiment,
    lang: Lang,
    data: DataDir,
    alignment: Path,
    out: Path,
    *,
    num_pdfs: int,
    min_frames: float = 100.0,
    cache: Path | None = None,
    num_workers: int = 1,
    bad_data: BadData | None = None,
) -> TreeSummary:
    """Tie left biphones by the features at the centres of the output frames, and write the language folder `out`.

    Args:
        experiment: sections features and network; the latter has the subsampling.
        lang: lexicon and topology; the silence phone ignores its left neighbour.
        data: utterances; those that the alignment lacks are left out.
        alignment: phones.ctm of `fsachain align`.
        out: folder.
        num_pdfs: as for `build_tied_tree`.
        min_frames: as for `build_tied_tree`.
        cache: folder that keeps features between runs.
        num_workers: threads that compute features.
        bad_data: as for `make_supervision`.

    Raises:
        DataError: the alignment has none of the utterances, or a line that cannot be read.
    """
    spoken = ByUtterance(read_ctm(alignment))
    network = experiment.network_spec(lang.tree.num_pdfs)
    subsampling, time_offset = network.subsampling, network.time_offset
    shift = experiment.features.frame_shift_ms / 1000.0
    statistics = BiphoneStatistics(
        len(lang.lexicon.phones), lang.tree.topology, experiment.features.num_features
    )
    used = frames = 0
    if bad_data is None:
        examples = load_examples(data, experiment.features, cache_dir=cache, num_workers=num_workers)
    else:
        _, (examples,) = bad_data.load(data, experiment.features, cache=cache, num_workers=num_workers)
    for example in track([e for e in examples if e.id in spoken], "statistics"):
        thinned = example.features[time_offset::subsampling]
        phones = aligned_phones(spoken[example.id], lang.lexicon.phones, shift)
        statistics.accumulate(thinned, _thinned(phones, subsampling, len(thinned)))
        used, frames = used + 1, frames + len(thinned)
    if not used:
        raise DataError(f"{alignment}: has none of the {len(data)} utterances")
    independent = () if lang.lexicon.silence is None else (lang.lexicon.silence,)
    tree = build_tied_tree(
        lang.lexicon.phones,
        lang.tree.topology,
        statistics,
        num_pdfs=num_pdfs,
        min_frames=min_frames,
        context_independent=independent,
    )
    made = Lang(lang.lexicon, tree)
    save_lang(made, out)
    return TreeSummary(made, used, frames)


def _thinned(phones: list[AlignedPhone], subsampling: int, num_frames: int) -> list[AlignedPhone]:
    """Spans in output frames: frame t belongs to the phone at its centre, input frame subsampling * t + offset."""

    def frame(time: int) -> int:
        return min(num_frames, max(0, math.ceil((time - subsampling // 2) / subsampling)))

    return [AlignedPhone(phone.phone, frame(phone.start), frame(phone.end)) for phone in phones]
