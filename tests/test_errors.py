"""Every refused input: a typed error in one line that says what came and what is allowed."""

import math
import re

import numpy as np
import pytest
import torch
from random_graphs import connected_graph, left_to_right_graph

from fsachain import (
    BackendUnavailable,
    ConfigError,
    DataError,
    DenominatorGraph,
    Fsa,
    FsachainError,
    GraphError,
    LFMMILoss,
    MissingExtraError,
    ShapeError,
    TableBatch,
    TransitionTable,
    available_backends,
    best_path,
    compile_table,
    forward_backward,
    total_log_prob,
)
from fsachain.errors import require

INF, NAN = math.inf, math.nan
without_gpu = pytest.mark.skipif(available_backends()["cuda"] == "available", reason="there is a GPU")


def refused(error, match):
    """The error, its message on one line."""
    return pytest.raises(error, match=rf"\A.*(?:{match}).*\Z")


def arcs_of(**changed):
    values = {
        "num_states": 2,
        "src": [0, 1],
        "dst": [1, 1],
        "pdf": [0, 1],
        "log_prob": [0.0, 0.0],
        "final_log_prob": [-INF, 0.0],
    }
    return values | changed


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"num_states": 0, "final_log_prob": []}, "num_states = 0: an acceptor needs at least one state"),
        ({"num_states": -3}, "num_states = -3"),
        ({"start": 2}, r"start = 2: expected a state in \[0, 2\)"),
        ({"start": -1}, r"start = -1: expected a state in \[0, 2\)"),
        ({"src": [0, 2]}, r"src\[1\] = 2 \(arc 1\): expected a state in \[0, 2\)"),
        ({"dst": [-1, 0]}, r"dst\[0\] = -1 \(arc 0\): expected a state in \[0, 2\)"),
        ({"pdf": [0, -1]}, r"pdf\[1\] = -1 \(arc 1, state 1 -> 1\): expected a pdf >= 0; an epsilon"),
        ({"pdf": [0.0, 1.0]}, "pdf has dtype float64: expected integers"),
        ({"pdf": [0, 2**40]}, "pdf holds 1099511627776: expected values that fit in 32 bits"),
        ({"pdf": [0]}, r"pdf has shape \[1\]: expected \[2\]"),
        ({"dst": [[1, 1]]}, r"dst has shape \[1, 2\]: expected \[2\]"),
        ({"log_prob": [0.0]}, r"log_prob has shape \[1\]: expected \[2\], one entry for each arc"),
        ({"log_prob": [0.0, NAN]}, r"log_prob\[1\] = nan \(arc 1\): expected a finite log-probability or -inf"),
        ({"log_prob": [INF, 0.0]}, r"log_prob\[0\] = inf \(arc 0\)"),
        ({"final_log_prob": [0.0, NAN]}, r"final_log_prob\[1\] = nan \(state 1\)"),
        ({"final_log_prob": [0.0]}, r"final_log_prob has shape \[1\]: expected \[2\], one entry for each state"),
    ],
)  # fmt: skip
def test_malformed_acceptors_are_refused(changed, match):
    with refused(GraphError, match):
        Fsa(**arcs_of(**changed))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "text: no states; expected at least one line"),
        ("0 1 1 2 0.5\n1\n", "line 1: input label 1, output label 2; expected an acceptor"),
        ("0 1 0 0 0.5\n1\n", r"line 1: label 0 \(epsilon\) on the arc 0 -> 1; expected labels >= 1"),
        ("0 1 1 1 nan\n1\n", "line 1: cost nan; expected a finite number or Infinity"),
        ("0 1 1 1 -Infinity\n1\n", "line 1: cost -Infinity"),
        ("0 1 1 1 much\n1\n", "line 1: cost 'much'; expected a number"),
        ("0 1 one one\n1\n", "line 1: label 'one'; expected an integer >= 0"),
        ("-1 1 1 1\n1\n", "line 1: state '-1'; expected an integer >= 0"),
        ("0 1 1 1 0.5\n0 1 2\n", "line 2: 3 fields; expected 4 or 5 as on the other arc lines"),
        ("0 1 1 1 0.5 6\n", "line 1: 6 fields"),
        ("0 4000000000 1 1\n", "line 1: state 4000000000; expected at most"),
        ("0 99999999 1 1\n", "state 99999999 among 1 arcs: expected states numbered densely"),
        ("0 1 1 1\n1 -inf\n", "line 2: cost -inf"),
    ],
)
def test_malformed_text_is_refused_with_its_line(text, match, tmp_path):
    with refused(GraphError, match):
        Fsa.from_text(text)
    path = tmp_path / "bad.fst.txt"
    path.write_text(text)
    with refused(GraphError, r"bad\.fst\.txt"):
        Fsa.from_text(path)
    with refused(GraphError, r"absent.txt: cannot be read \(No such file or directory\)"):
        Fsa.from_text(tmp_path / "absent.txt")


def test_a_pdf_out_of_range_names_utterance_arc_and_state():
    fsa = Fsa(**arcs_of(pdf=[0, 7]))
    with refused(GraphError, r"utt1: pdf 7 on arc 1 out of state 1; expected pdfs in \[0, 7\)"):
        compile_table(fsa, 7, name="utt1")
    with refused(GraphError, r"denominator: pdf 7 on arc 1"):
        DenominatorGraph(fsa, 5)
    with refused(GraphError, "num_pdfs = -1"):
        compile_table(Fsa(1, [], [], [], [], [0.0]), -1)


def test_new_arc_weights_are_checked():
    table = compile_table(Fsa(**arcs_of()))
    with refused(ShapeError, r"shape \[3\]; expected \[2\]"):
        table.with_arc_log_probs(np.zeros(3))
    with refused(GraphError, "arc log-probability 1 = nan; expected a finite number or -inf"):
        table.with_arc_log_probs(np.array([0.0, NAN]))


@pytest.mark.parametrize("content", [b"", b"nonsense", "npz", "other npz"])
def test_what_is_no_saved_table_is_refused_by_file(content, tmp_path):
    path = tmp_path / "table.npz"
    if content == "npz":
        np.savez(path, x=np.zeros(3))
    elif content == "other npz":
        np.savez(path, format=np.array("something else"))
    else:
        path.write_bytes(content)
    with refused(DataError, "table.npz: not a saved TransitionTable"):
        TransitionTable.load(path)
    with refused(DataError, "absent.npz: not a saved TransitionTable"):
        TransitionTable.load(tmp_path / "absent.npz")


def table():
    return compile_table(connected_graph(0), 9)


def test_malformed_batches_are_refused():
    with refused(ShapeError, "tables is empty"):
        TableBatch.pack([])
    with refused(ShapeError, r"tables\[1\] is a str; expected an Fsa, a Numerator or a TransitionTable"):
        TableBatch.pack([table(), "den.fst"])
    with refused(ShapeError, "names has 1 entries; expected 2"):
        TableBatch.pack([table(), table()], ["only one"])
    with refused(ShapeError, "batch_size = 0; expected at least 1"):
        TableBatch.share(table(), 0)
    with refused(ShapeError, "table is a list; expected an Fsa, a Numerator or a TransitionTable"):
        TableBatch.share([table()], 2)
    with refused(BackendUnavailable, "device 'mps': .*expected 'cpu' or 'cuda'"):
        TableBatch.share(table(), 2).to("mps")
    with refused(BackendUnavailable, "backend 'cuda' on device 99: "):
        TableBatch.share(table(), 2).to("cuda:99")


SCORES = np.zeros((2, 5, 9), np.float32)


@pytest.mark.parametrize(
    ("scores", "options", "error", "match"),
    [
        (SCORES[0], {}, ShapeError, r"scores has shape \[5, 9\]; expected \[N, T, P\]"),
        (SCORES[:1], {}, ShapeError, r"scores has 1 sequences \(shape \[1, 5, 9\]\); expected 2"),
        (SCORES[:, :, :8], {}, ShapeError, r"scores has 8 pdfs .*expected at least 9 for first"),
        (SCORES.astype(int), {}, ShapeError, "scores has dtype int64; expected float16, bfloat16, float32 or float64"),
        (SCORES.astype(np.longdouble), {}, ShapeError, "scores has dtype float128|longdouble"),
        (SCORES.astype(complex), {}, ShapeError, "scores has dtype complex128"),
        (torch.zeros(2, 5, 9, dtype=torch.int64), {}, ShapeError, "scores has dtype int64"),
        ([["a"]], {}, ShapeError, "scores has dtype"),
        (SCORES, {"lengths": [5]}, ShapeError, r"lengths has shape \[1\] and dtype int64; expected 2 integers"),
        (SCORES, {"lengths": [5.0, 4.0]}, ShapeError, "lengths has shape .* dtype float64; expected 2 integers"),
        (SCORES, {"lengths": [True, True]}, ShapeError, "dtype bool"),
        (SCORES, {"lengths": [5, 6]}, ShapeError, r"lengths\[1\] = 6 \(second\); expected 0 to 5"),
        (SCORES, {"lengths": [-1, 5]}, ShapeError, r"lengths\[0\] = -1 \(first\); expected 0 to 5"),
        pytest.param(
            *(SCORES, {"backend": "cuda"}, BackendUnavailable, "backend 'cuda': .*available: reference, cpu"),
            marks=without_gpu,
        ),
        (SCORES, {"backend": "tpu"}, BackendUnavailable, "backend 'tpu': no backend has this name"),
    ],
)  # fmt: skip
def test_malformed_arguments_of_the_recursions_are_refused(scores, options, error, match):
    batch = TableBatch.pack([table(), table()], ["first", "second"])
    for function in (forward_backward, best_path):
        with refused(error, match):
            function(batch, scores, **options)
    if isinstance(scores, torch.Tensor) and not options:
        with refused(error, match):
            total_log_prob(batch, scores)


@pytest.mark.parametrize("argument", ["batch", "numerators"])
def test_what_is_no_list_of_graphs_is_refused_by_the_arguments_name(argument):
    def call(graphs):
        return forward_backward(graphs, SCORES) if argument == "batch" else loss_call(numerators=graphs)

    with refused(ShapeError, f"{argument} is one Fsa; expected a TableBatch or a list .*TableBatch.share"):
        call(connected_graph(0))
    with refused(ShapeError, f"{argument} is empty; expected at least one graph"):
        call([])
    with refused(ShapeError, rf"{argument}\[1\] is a int; expected an Fsa, a Numerator or a TransitionTable"):
        call([connected_graph(0), 2])


@pytest.mark.parametrize("coefficient", [-0.1, 1.5, NAN])
def test_a_leak_out_of_range_is_refused(coefficient):
    denominator = DenominatorGraph(connected_graph(0), 9)
    match = f"leaky_hmm_coefficient = {coefficient}; expected"
    with refused(ConfigError, match):
        forward_backward(denominator.batch(2), SCORES, leaky_hmm_coefficient=coefficient)
    with refused(ConfigError, match):
        LFMMILoss(denominator, leaky_hmm_coefficient=coefficient)


def test_a_leak_needs_tables_that_say_where_it_lands():
    batch = TableBatch.pack([table(), table()], ["first", "second"])
    for function, scores in ((forward_backward, SCORES), (total_log_prob, torch.from_numpy(SCORES))):
        with refused(
            ConfigError,
            "0.1, but the table of first has no leaky_log_prob; expected tables of a DenominatorGraph",
        ):
            function(batch, scores, leaky_hmm_coefficient=0.1)


def test_total_log_prob_refuses_numpy_and_wrong_arc_weights():
    batch = TableBatch.share(table(), 2)
    with refused(ShapeError, "scores is a ndarray; expected a torch tensor"):
        total_log_prob(batch, SCORES)
    with refused(ShapeError, r"arc_log_probs has shape \[3\]; expected \[40\]"):
        total_log_prob(batch, torch.from_numpy(SCORES), arc_log_probs=torch.zeros(3))
    with refused(GraphError, "arc log-probability 0 = inf"):
        total_log_prob(batch, torch.from_numpy(SCORES), arc_log_probs=torch.full((40,), INF))


def test_denominators_refuse_unknown_ends_and_graphs_without_a_cycle():
    with refused(ConfigError, "initial = 'anywhere'; expected 'stationary' or 'start'"):
        DenominatorGraph(connected_graph(0), 9, initial="anywhere")
    with refused(ConfigError, "final = 'all'; expected 'one' or 'fsa'"):
        DenominatorGraph(connected_graph(0), 9, final="all")
    acyclic = Fsa(2, [0], [1], [0], [0.0], [-INF, 0.0])
    with refused(GraphError, "all probability leaves the graph after 1 arcs.*expected a cycle"):
        DenominatorGraph(acyclic, 9)
    as_it_stands = DenominatorGraph(acyclic, 9, initial="start")
    with refused(GraphError, "all probability leaves the graph"):
        _ = as_it_stands.initial_probs
    with refused(GraphError, "merge = 'mean'"):
        DenominatorGraph(connected_graph(0), 9).normalization_fsa(merge="mean")


def loss_call(**changed):
    loss = LFMMILoss(DenominatorGraph(connected_graph(0), 9))
    arguments = {
        "nnet_output": torch.zeros(2, 5, 9),
        "lengths": [5, 5],
        "numerators": [left_to_right_graph(n, 3, 9) for n in range(2)],
    }
    return loss(**(arguments | changed))


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"nnet_output": torch.zeros(5, 9)}, ShapeError, r"nnet_output has shape \[5, 9\]; expected \[N, T, 9\]"),
        ({"nnet_output": torch.zeros(2, 5, 8)}, ShapeError, r"nnet_output has shape \[2, 5, 8\]; expected \[N, T, 9\]"),
        ({"nnet_output": torch.zeros(2, 5, 9, dtype=torch.int64)}, ShapeError, "nnet_output has dtype int64"),
        (
            {"numerators": [left_to_right_graph(0, 3, 9), Fsa(2, [0], [1], [9], [0.0], [-INF, 0.0])]},
            *(ShapeError, "nnet_output has 9 pdfs .*; expected at least 10 for sequence 1"),
        ),
        ({"nnet_output": SCORES}, ShapeError, "nnet_output is a ndarray; expected a torch tensor"),
        ({"numerators": [left_to_right_graph(0, 3, 9)]}, ShapeError, "numerators holds 1 graphs; expected 2"),
        ({"lengths": None}, ShapeError, r"lengths is None; expected the frames of each sequence, \[2\] integers"),
        ({"lengths": [5]}, ShapeError, r"lengths has shape \[1\]; expected \[2\]"),
        ({"lengths": [5, 9]}, ShapeError, r"lengths\[1\] = 9 \(sequence 1\); expected 0 to 5"),
        ({"lengths": [5.0, 5.0]}, ShapeError, "lengths has shape .* dtype float32; expected 2 integers"),
        ({"lengths": ["5", "5"]}, ShapeError, "lengths is no tensor of numbers"),
        ({"weights": [1.0]}, ShapeError, r"weights has shape \[1\]; expected \[2\]"),
        ({"weights": [1.0, -1.0]}, ConfigError, r"weights\[1\] = -1.0 \(sequence 1\); expected a finite number >= 0"),
        ({"weights": [NAN, 1.0]}, ConfigError, r"weights\[0\] = nan"),
        ({"frame_weights": torch.ones(5, 2)}, ShapeError, r"frame_weights has shape \[5, 2\]; expected \[2, 5\]"),
        ({"xent_log_probs": torch.ones(2, 5, 8)}, ShapeError, r"xent_log_probs has shape \[2, 5, 8\]; expected \[2, 5, 9\]"),
        ({"denominator_of": ["denominator"]}, ShapeError, "denominator_of has 1 names; expected 2"),
        ({"denominator_of": ["denominator", "de"]}, ConfigError, r"denominator_of\[1\] = 'de' \(sequence 1\)"),
    ],
)  # fmt: skip
def test_malformed_arguments_of_the_loss_are_refused(changed, error, match):
    with refused(error, match):
        loss_call(**changed)


@pytest.mark.parametrize(
    ("denominator", "options", "match"),
    [
        (None, {"l2_regularize": -1.0}, "l2_regularize = -1.0; expected a finite number >= 0"),
        (None, {"out_of_range_regularize": NAN}, "out_of_range_regularize = nan"),
        (None, {"xent_regularize": INF}, "xent_regularize = inf"),
        (None, {"denominator_scale": -0.5}, "denominator_scale = -0.5"),
        (None, {"boost": -0.1}, "boost = -0.1; expected a finite number >= 0"),
        (None, {"consistency": -1.0}, "consistency = -1.0; expected a finite number >= 0"),
        ({}, {}, r"denominators have \[\] pdfs"),
        (connected_graph(0), {}, "denominator is a Fsa; expected a DenominatorGraph"),
    ],
)
def test_malformed_options_of_the_loss_are_refused(denominator, options, match):
    denominator = DenominatorGraph(connected_graph(0), 9) if denominator is None else denominator
    with refused(ConfigError, match):
        LFMMILoss(denominator, **options)


def test_several_denominators_must_be_of_one_width_and_chosen_by_name():
    wide, narrow = (DenominatorGraph(connected_graph(0), width) for width in (12, 9))
    with refused(
        ConfigError, r"denominators have \[9, 12\] pdfs; expected one graph or more, all of one width"
    ):
        LFMMILoss({"a": wide, "b": narrow})
    loss = LFMMILoss({"a": narrow, "b": narrow})
    with refused(ConfigError, r"denominator_of is None; expected one of \['a', 'b'\] for each sequence"):
        loss(torch.zeros(1, 5, 9), [5], [left_to_right_graph(0, 3, 9)])


def test_every_backend_says_whether_it_is_there_and_why_not():
    states = available_backends()
    assert list(states) == ["reference", "cpu", "cuda"]
    assert states["reference"] == states["cpu"] == "available"
    if not torch.cuda.is_available():
        assert re.match(
            r"cupy cannot be imported|no CUDA device can be used|there is no CUDA device", states["cuda"]
        )


def test_errors_are_also_the_builtin_that_a_caller_expects():
    for error, builtin in (
        (GraphError, ValueError),
        (ShapeError, ValueError),
        (DataError, ValueError),
        (ConfigError, ValueError),
        (BackendUnavailable, RuntimeError),
        (MissingExtraError, ImportError),
    ):
        assert issubclass(error, builtin) and issubclass(error, FsachainError)


def test_a_missing_package_names_its_extra():
    with refused(MissingExtraError, r"'no_such_module' is needed here.*pip install 'fsachain\[graph\]'"):
        require("no_such_module", extra="graph")
    assert require("math", extra="graph") is math
