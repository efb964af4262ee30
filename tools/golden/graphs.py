"""Print our graphs beside Kaldi's: phone models, denominators, normalizations and numerators of every golden lm case.

    python -m tools.golden.graphs [--paths 60]

Each graph is made of what Kaldi had: the denominator of Kaldi's phone model, the normalization (merge="min") of Kaldi's
denominator; numerators are normalized with this normalization of ours. Paths are drawn from both graphs; the difference
shown is the one that comes closest to what is allowed, or goes furthest beyond it. The empty path, which Kaldi's
normalization has and ours has not, is left out. States and arcs of numerators are summed over the transcripts of a case.
The exit status is 1 if a line is over what is allowed, 2 if there is nothing to compare with.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsachain import DenominatorGraph, Fsa
from fsachain.asr.kaldi.model import read_context_tree
from fsachain.graph.algorithms import SequenceScorer, random_paths
from fsachain.graph.context import ContextTree
from fsachain.graph.denominator import build_denominator
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.phone_lm import estimate_phone_lm
from tests import tolerances
from tools import SHARED, parser_of

SIZE = 1.02  # of Kaldi's states and arcs, at most, where graphs need not be equal
SHORT = 20  # frames


@dataclass(frozen=True)
class GraphRow:
    case: str  # the golden lm case
    graph: str
    states: tuple[int, int]  # ours and Kaldi's
    arcs: tuple[int, int]
    difference: float  # of the two scores of one path; inf where one graph refuses it
    allowed: float  # for this path
    size_allowed: float  # of our states and arcs over Kaldi's, at most; inf where sizes are not compared

    @property
    def agrees(self) -> bool:
        sizes = (self.states, self.arcs)
        return self.difference <= self.allowed and all(a <= self.size_allowed * b for a, b in sizes)


def cases(shared: Path) -> list[Path]:
    return sorted(path.parent for path in (shared / "golden/kaldi/lm").glob("*/den.fst"))


def language(folder: Path) -> tuple[Lexicon, ContextTree]:
    """The lexicon and the tree of a case."""
    lexicon = Lexicon.read(folder / "lexiconp.txt", phones=folder / "phones.txt")
    return lexicon, read_context_tree(folder / "tree", folder / "0.trans_mdl", lexicon.phones)


def rows(folder: Path, num_paths: int = 60) -> Iterator[GraphRow]:
    lexicon, tree = language(folder)
    their_model = Fsa.read(folder / "phone_lm.fst")
    pairs = [(_phone_model(folder), their_model)]
    yield _row(folder, "phone LM", pairs, num_paths, lambda _: tolerances.KALDI_WEIGHT, 1.0)
    their_den = Fsa.read(folder / "den.fst")
    pairs = [(build_denominator(their_model, tree), their_den)]
    yield _row(folder, "denominator", pairs, num_paths, _denominator_allowance, SIZE)
    our_normalization = DenominatorGraph(their_den, tree.num_pdfs).normalization_fsa("min")
    pairs = [(our_normalization, Fsa.read(folder / "normalization.fst"))]
    yield _row(folder, "normalization", pairs, num_paths, lambda _: tolerances.KALDI_WEIGHT, 1.0)
    said = [line.split() for line in (folder / "test_text.txt").read_text(encoding="utf-8").splitlines()]
    for kind, normalization in (("sup", None), ("supnorm", our_normalization)):
        pairs = []
        for name, *words in said:
            path = folder / f"sup/{name}.{kind}.fst"
            if path.exists():
                ours = build_numerator(words, lexicon, tree, normalization=normalization, name=name)
                pairs.append((ours.fsa, Fsa.read(path)))
        label = f"{len(pairs)} numerators" + (", normalized" if normalization else "")
        yield _row(folder, label, pairs, num_paths, lambda _: tolerances.KALDI_SUPERVISION_PATH, math.inf)


def _phone_model(folder: Path) -> Fsa:
    command = json.loads((folder.parent / "index.json").read_text(encoding="utf-8"))[folder.name]["lm_opts"]
    found = re.findall(r"--([a-z-]+)=(\d+)", command)
    options = {name.replace("-", "_"): int(value) for name, value in found}
    lines = (folder / "phone_seqs.txt").read_text(encoding="utf-8").splitlines()
    return estimate_phone_lm([[int(phone) for phone in line.split()[1:]] for line in lines], **options)


def _denominator_allowance(num_frames: int) -> float:
    """Kaldi's weights are quantised: its own scores may be off by the tolerance, and ours from the exact one."""
    per_frame = tolerances.KALDI_DEN_PATH_SHORT if num_frames < SHORT else tolerances.KALDI_DEN_PATH_LONG
    return 2 * min(num_frames * per_frame, tolerances.KALDI_DEN_PATH_TOTAL)


def _row(
    folder: Path,
    graph: str,
    pairs: list[tuple[Fsa, Fsa]],
    num_paths: int,
    allowance: Callable[[int], float],
    size_allowed: float,
) -> GraphRow:
    """`pairs` are ours and Kaldi's; scores are those of best paths, as Kaldi determinises in the tropical semiring."""
    worst = (0.0, allowance(1))
    for pair in pairs:
        score, expected = (SequenceScorer(fsa, "tropical") for fsa in pair)
        for fsa in pair:
            for path in random_paths(fsa, num_paths, seed=11):
                pdfs = fsa.pdf[path]
                if not len(pdfs):
                    continue
                ours, theirs = score(pdfs), expected(pdfs)
                found = (abs(ours - theirs) if ours != theirs else 0.0, allowance(len(pdfs)))
                worst = max(worst, found, key=lambda entry: entry[0] / entry[1])
    states = tuple(sum(pair[side].num_states for pair in pairs) for side in (0, 1))
    arcs = tuple(sum(pair[side].num_arcs for pair in pairs) for side in (0, 1))
    return GraphRow(folder.name, graph, states[:2], arcs[:2], *worst, size_allowed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--paths", type=int, default=60, help="paths drawn from each graph")
    options = parser.parse_args(arguments)
    found = [row for folder in cases(SHARED) for row in rows(folder, options.paths)]
    if not found:
        print(f"{SHARED}: no golden values found; expected golden/kaldi/lm", file=sys.stderr)
        return 2
    head = "case", "graph", "states: ours", "Kaldi", "arcs: ours", "Kaldi", "difference", "allowed"
    print("{:18} {:26} {:>12} {:>7} {:>10} {:>7} {:>11} {:>9}".format(*head))
    for row in found:
        sizes = "{:12} {:7} {:10} {:7}".format(*row.states, *row.arcs)
        print(f"{row.case:18} {row.graph:26} {sizes} {row.difference:11.2e} {row.allowed:9.1e}")
    over = sum(not row.agrees for row in found)
    print(f"{len(found)} rows, {over} over what is allowed")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
