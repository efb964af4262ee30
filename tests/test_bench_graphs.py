"""The benchmark of graphs builds the graphs that it times; no test looks at a time."""

import os
from pathlib import Path

import pytest

from fsachain.graph.lexicon import Lexicon
from fsachain.graph.topology import Topology
from fsachain.kaldi.archive import read_value
from fsachain.openfst import read_fst
from tools.bench import graphs
from tools.golden.oracle import Job, compile_jobs


def test_a_row_of_models_has_their_sizes(shared):
    folder = shared / "golden/kaldi/lm/lm6_biphone_tied"
    sentences, phones, states, _, arcs, *_ = graphs.model_row(folder, 20).replace(",", "").split()
    said = graphs.drawn(graphs.read_lexicon(folder).words, 20, graphs.LONGEST + 1, skew=1.0)
    assert int(sentences) == 20 and int(phones) >= sum(map(len, said))
    assert 1 < int(states) <= int(arcs)


def test_costs_of_kaldi_are_of_the_graphs_that_it_wrote(tmp_path):
    python = os.environ.get("FSACHAIN_KALDI_PYTHON")
    if python is None:
        pytest.skip("FSACHAIN_KALDI_PYTHON names no interpreter with kaldi-hmm-gmm; run make test-kaldi")
    lexicon = Lexicon.from_entries([("a", 1.0, ["A"]), ("ab", 1.0, ["A", "B"])])
    jobs = [Job(lexicon, Topology.chain(), [[1], [2], [3]], [["a"], ["ab", "a"]])]
    ((first, second),) = compile_jobs(Path(python), jobs, tmp_path)
    for number, cost in enumerate((first, second)):
        assert cost.num_arcs == len(read_value(tmp_path / f"0.{number}.fst", read_fst).src)
        assert cost.seconds > 0
