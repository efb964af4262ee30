"""Readers of Kaldi's files, each with a sound file to begin from."""

from __future__ import annotations

import gzip
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fsachain.data.kaldi_examples import read_examples
from fsachain.kaldi.archive import read_table, read_value
from fsachain.kaldi.examples import read_example, read_objective
from fsachain.kaldi.lattice import read_lattice
from fsachain.kaldi.model import read_topology, read_transition_model, read_tree
from fsachain.kaldi.values import read_alignment, read_matrix, read_num_rows, read_posterior
from fsachain.openfst import read_fst, read_symbols
from fsachain.stream import Cursor
from tools.fuzz.reader import Reader, content


def _matrix() -> bytes:
    values = np.arange(12, dtype="<f4").tobytes()
    sizes = b"\x04" + (4).to_bytes(4, "little") + b"\x04" + (3).to_bytes(4, "little")
    return b"u1 \0BFM " + sizes + values


def _table(read: Callable[[Cursor], object]) -> Callable[[Path], object]:
    return lambda path: deque(read_table(path, read), maxlen=0)  # as commands do: one value at a time


def _read_rows(path: Path) -> int:
    """Of the matrix behind the key, whose numbers are not read."""
    return read_value(f"{path}:3", read_num_rows)


def _split_examples(path: Path) -> int:
    return sum(len(found.example.features) for found in read_examples(path))


_LATTICE = b"u1\n0 1 5 2.5,-12.25,17_17_18\n1 2 4 0.5,1.25,\n2 0,0,3_4\n\n"
_TREE = b"""ContextDependency 3 1 ToPdf SE 0 [ 1 2 ]
{ TE -1 2 ( CE 0 CE 1 ) CE 2 } EndContextDependency """
TOPOLOGY = b"""<Topology> <TopologyEntry> <ForPhones> 1 </ForPhones> <State> 0 <ForwardPdfClass> 0 <SelfLoopPdfClass> 1 \
<Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 </State> </TopologyEntry> </Topology> """
_MODEL = b"""<Tuples> 1 1 0 0 1 </Tuples> <LogProbs> [ 0 -0.7 -0.7 ]
</LogProbs> </TransitionModel> """
EXAMPLE = b"""<Nnet3ChainEg> <NumInputs> 1
<NnetIo> input <I1V> 2 <I1> 0 0 0 <I1> 0 1 0  [
  0.5
  1.5 ]
</NnetIo>
<NumOutputs> 1
<NnetChainSup> output <I1V> 1 <I1> 0 0 0 <Supervision> <Weight> 1 <NumSequences> 1 <FramesPerSeq> 1 \
<LabelDim> 4 <End2End> T <Fsts>
0 1 1 1 0.5
1 0.25

</Fsts> </Supervision> <DW2>  [ 1 ]
</NnetChainSup>
</Nnet3ChainEg>
"""
OBJECTIVE = b"LOG Overall log-probability for 'output' is -0.1 per frame, over 100 frames.\n"
KALDI_READERS = (
    Reader("symbols", ".txt", content(b"<eps> 0\nyes 1\nno 2\n"), read_symbols),
    Reader("matrices", ".ark", content(_matrix()), _table(read_matrix)),
    Reader("rows of matrices", ".ark", content(_matrix()), _read_rows),
    Reader("matrices as text", ".ark", content(b"u1  [\n 1 2\n 3 4 ]\n"), _table(read_matrix)),
    Reader("alignments", ".ark", content(b"u1 1 2 3\nu2 4 5\n"), _table(read_alignment)),
    Reader("posteriors", ".ark", content(b"u1 [ 1 0.5 2 0.5 ] [ 3 1 ]\n"), _table(read_posterior)),
    Reader("fsts as text", ".ark", content(b"u1\n0 1 1 1 0.5\n1 0\n\n"), _table(read_fst)),
    Reader("lattices", ".ark", content(_LATTICE), _table(read_lattice)),
    Reader("packed lattices", ".ark.gz", content(gzip.compress(_LATTICE, mtime=0)), _table(read_lattice)),
    Reader("kaldi tree", ".tree", content(_TREE), read_tree),
    Reader("topology", ".topo", content(TOPOLOGY), read_topology),
    Reader(
        "transition model", ".mdl", content(b"<TransitionModel> " + TOPOLOGY + _MODEL), read_transition_model
    ),
    Reader("examples", ".ark", content(b"a " + EXAMPLE), _table(read_example)),
    Reader("split examples", ".ark", content(b"a " + EXAMPLE), _split_examples),
    Reader("training log", ".log", content(OBJECTIVE), read_objective),
)
