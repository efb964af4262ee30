"""Every refused input: a typed error in one line that says what came and what is allowed."""

import math
import re

import numpy as np
import pytest
import torch
from random_graphs import connected_graph, left_to_right_graph
from refusals import refuses

from fsachain import (
    BackendUnavailable,
    ConfigError,
    DataError,
    DenominatorGraph,
    Forgiveness,
    Fsa,
    FsachainError,
    GraphError,
    Lexicon,
    LFMMILoss,
    MBRLoss,
    MissingExtraError,
    ShapeError,
    TableBatch,
    TransitionTable,
    available_backends,
    best_path,
    compile_table,
    ctc_loss,
    estimate_phone_lm,
    forward_backward,
    lm_phones,
    rnnt_loss,
    total_log_prob,
)
from fsachain.errors import require
from fsachain.graph.decoding import Weights

INF, NAN = math.inf, math.nan
ONES = torch.ones(2, requires_grad=True)
NOT_FINITE = torch.tensor([[1.0] * 5, [1.0, NAN, INF, 1.0, 1.0]])
without_gpu = pytest.mark.skipif(available_backends()["cuda"] == "available", reason="there is a GPU")


def arcs_of(**changed):
    values = {"num_states": 2, "src": [0, 1], "dst": [1, 1], "pdf": [0, 1], "log_prob": [0.0, 0.0]}
    return values | {"final_log_prob": [-INF, 0.0]} | changed


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"num_states": 2.0}, "num_states = 2.0; expected an integer"),
        ({"start": 0.5}, "start = 0.5; expected an integer"),
        ({"start": "0"}, "start = '0'; expected an integer"),
        ({"num_states": 0, "final_log_prob": []}, "num_states = 0: an acceptor needs at least one state"),
        ({"num_states": -3}, "num_states = -3"),
        ({"start": 2}, r"start = 2: expected a state in \[0, 2\)"),
        ({"final_log_prob": [False, True]}, "final_log_prob has dtype bool: expected log-probabilities, 0 for a prob"),
        ({"log_prob": ONES}, r"log_prob wants a gradient, .* log_prob.detach\(\), .* arc_log_probs of total_log_prob"),
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
    refuses(GraphError, match, Fsa, **arcs_of(**changed))


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
        ("0 99999999 1 1\n", "state 99999999 among 1 arc: expected states numbered densely"),
        ("0 1 1 1\n1 -inf\n", "line 2: cost -inf"),
    ],
)
def test_malformed_text_is_refused_with_its_line(text, match, tmp_path):
    refuses(GraphError, match, Fsa.from_text, text)
    path = tmp_path / "bad.fst.txt"
    path.write_text(text)
    refuses(GraphError, r"bad\.fst\.txt", Fsa.from_text, path)
    absent = r"absent.txt: cannot be read \(No such file or directory\)"
    refuses(GraphError, absent, Fsa.from_text, tmp_path / "absent.txt")


def test_what_is_no_saved_table_is_refused_by_file(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "format.npz", format=np.array("something else"))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_bytes(b"nonsense")
    for name in ("other", "format", "empty", "text", "absent"):
        path = tmp_path / f"{name}.npz"
        refuses(DataError, f"{name}.npz: not a saved TransitionTable", TransitionTable.load, path)


TABLE, DENOMINATOR = compile_table(connected_graph(0), 9), DenominatorGraph(connected_graph(0), 9)
BATCH = TableBatch.pack([TABLE, TABLE], ["first", "second"])
A_GRAPH = "expected an Fsa, a Numerator or a TransitionTable"
SCORES = np.zeros((2, 5, 9), np.float32)


@pytest.mark.parametrize(
    ("scores", "options", "error", "match"),
    [
        (SCORES[0], {}, ShapeError, r"scores has shape \[5, 9\]; expected \[N, T, P\]"),
        (SCORES[:1], {}, ShapeError, r"scores has 1 sequence \(shape \[1, 5, 9\]\); expected 2"),
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
    for function in (forward_backward, best_path):
        refuses(error, match, function, BATCH, scores, **options)
    if isinstance(scores, torch.Tensor) and not options:
        refuses(error, match, total_log_prob, BATCH, scores)


@pytest.mark.parametrize("argument", ["batch", "numerators"])
def test_what_is_no_list_of_graphs_is_refused_by_the_arguments_name(argument):
    def call(graphs):
        return forward_backward(graphs, SCORES) if argument == "batch" else loss_call(numerators=graphs)

    for graphs, told in (
        (connected_graph(0), " is one Fsa; expected a TableBatch or a list .*TableBatch.share"),
        ([], " is empty; expected at least one graph"),
        ([connected_graph(0), 2], rf"\[1\] is a int; {A_GRAPH}"),
    ):
        refuses(ShapeError, argument + told, call, graphs)


TENSOR, PDF_7 = torch.from_numpy(SCORES), Fsa(**arcs_of(pdf=[0, 7]))
ACYCLIC = Fsa(2, [0], [1], [0], [0.0], [-INF, 0.0])
NO_LEAK = "0.1, but the table of first has no leaky_log_prob; expected tables of a DenominatorGraph"


def weighted(arc_log_probs):
    return total_log_prob(BATCH, TENSOR, arc_log_probs=arc_log_probs)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: compile_table(PDF_7, 7, name="utt1"), GraphError, "utt1: pdf 7 on arc 1 out of state 1; expected pdfs in"),
        (lambda: DenominatorGraph(PDF_7, 5), GraphError, "denominator: pdf 7 on arc 1"),
        (lambda: compile_table(Fsa(1, [], [], [], [], [0.0]), -1), GraphError, "num_pdfs = -1"),
        (lambda: compile_table(PDF_7, 8.5), GraphError, "num_pdfs = 8.5; expected an integer"),
        (lambda: DenominatorGraph(PDF_7, 8.5), GraphError, "num_pdfs = 8.5; expected an integer"),
        (lambda: TABLE.with_arc_log_probs(np.zeros(3)), ShapeError, r"shape \[3\]; expected \[40\]"),
        (lambda: TABLE.with_arc_log_probs(np.full(40, NAN)), GraphError, "arc log-probability 0 = nan; expected a finite"),
        (lambda: TableBatch.pack([]), ShapeError, "tables is empty"),
        (lambda: TableBatch.pack([TABLE, "den.fst"]), ShapeError, rf"tables\[1\] is a str; {A_GRAPH}"),
        (lambda: TableBatch.pack([TABLE, TABLE], ["only one"]), ShapeError, "names has 1 entry; expected 2"),
        (lambda: TableBatch.share(TABLE, 0), ShapeError, "batch_size = 0; expected at least 1"),
        (lambda: TableBatch.share(TABLE, 1.5), ShapeError, "batch_size = 1.5; expected an integer"),
        (lambda: TableBatch.share([TABLE], 2), ShapeError, f"table is a list; {A_GRAPH}"),
        (lambda: BATCH.to("mps"), BackendUnavailable, "device 'mps': .*expected 'cpu' or 'cuda'"),
        (lambda: BATCH.to("cuda:99"), BackendUnavailable, "backend 'cuda' on device 99: "),
        (lambda: forward_backward(BATCH, SCORES, leaky_hmm_coefficient=0.1), ConfigError, NO_LEAK),
        (lambda: total_log_prob(BATCH, TENSOR, leaky_hmm_coefficient=0.1), ConfigError, NO_LEAK),
        (lambda: forward_backward(BATCH, SCORES).arc_occupancy(2), IndexError, "n = 2; expected a sequence .*, 0 to 1"),
        (lambda: total_log_prob(BATCH, SCORES), ShapeError, "scores is a ndarray; expected a torch tensor"),
        (lambda: weighted(np.zeros(80)), ShapeError, "arc_log_probs is a ndarray; expected a torch tensor"),
        (lambda: weighted(torch.zeros(3)), ShapeError, r"arc_log_probs has shape \[3\]; expected \[80\]"),
        (lambda: weighted(torch.full((80,), INF)), GraphError, "arc log-probability 0 = inf"),
        (lambda: DenominatorGraph(PDF_7, 9, initial="anywhere"), ConfigError, "initial = 'anywhere'; expected 'stationary'"),
        (lambda: DenominatorGraph(PDF_7, 9, final="all"), ConfigError, "final = 'all'; expected 'one' or 'fsa'"),
        (lambda: DenominatorGraph(ACYCLIC, 9), GraphError, "leaves the graph after 1 arc.*initial='start'"),
        (lambda: DenominatorGraph(ACYCLIC, 9, initial="start").initial_probs, GraphError, "all probability leaves"),
        (lambda: DENOMINATOR.normalization_fsa(merge="mean"), GraphError, "merge = 'mean'"),
    ],
)  # fmt: skip
def test_malformed_graphs_and_batches_are_refused(call, error, match):
    refuses(error, match, call)


@pytest.mark.parametrize("coefficient", [-0.1, 1.5, NAN, "1e-5", None])
def test_a_leak_out_of_range_is_refused(coefficient):
    """YAML reads 1e-5, which has no point, as text."""
    leak = {"leaky_hmm_coefficient": coefficient}
    for call, given in ((forward_backward, (DENOMINATOR.batch(2), SCORES)), (LFMMILoss, (DENOMINATOR,))):
        refuses(ConfigError, f"leaky_hmm_coefficient = {coefficient!r}; expected", call, *given, **leak)


def loss_call(**changed):
    loss = LFMMILoss(DENOMINATOR)
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
        ({"numerators": [left_to_right_graph(0, 3, 9)]}, ShapeError, "numerators holds 1 graph; expected 2"),
        ({"lengths": None}, ShapeError, r"lengths is None; expected the frames of each sequence, \[2\] integers"),
        ({"lengths": [5]}, ShapeError, r"lengths has shape \[1\]; expected \[2\]"),
        ({"lengths": [5, 9]}, ShapeError, r"lengths\[1\] = 9 \(sequence 1\); expected 0 to 5"),
        ({"lengths": [5.0, 5.0]}, ShapeError, "lengths has shape .* dtype float32; expected 2 integers"),
        ({"lengths": ["5", "5"]}, ShapeError, "lengths is no tensor of numbers"),
        ({"weights": [1.0]}, ShapeError, r"weights has shape \[1\]; expected \[2\]"),
        ({"weights": [1.0, -1.0]}, ConfigError, r"weights\[1\] = -1.0 \(sequence 1\); expected a finite number >= 0"),
        ({"weights": [NAN, 1.0]}, ConfigError, r"weights\[0\] = nan"),
        ({"weights": ONES}, ConfigError, r"^weights wants a gradient, .* expected weights.detach\(\)"),
        ({"frame_weights": ONES.expand(5, 2).T}, ConfigError, "^frame_weights wants a gradient"),
        ({"frame_weights": NOT_FINITE}, ConfigError, r"frame_weights\[1, 1\] = nan \(sequence 1\); expected a finite"),
        ({"frame_weights": torch.ones(5, 2)}, ShapeError, r"frame_weights has shape \[5, 2\]; expected \[2, 5\]"),
        ({"xent_log_probs": torch.ones(2, 5, 8)}, ShapeError, r"xent_log_probs has shape \[2, 5, 8\]; expected \[2, 5, 9\]"),
        ({"denominator_of": ["denominator"]}, ShapeError, "denominator_of has 1 name; expected 2"),
        ({"denominator_of": ["denominator", "de"]}, ConfigError, r"denominator_of\[1\] = 'de' \(sequence 1\)"),
    ],
)  # fmt: skip
def test_malformed_arguments_of_the_loss_are_refused(changed, error, match):
    refuses(error, match, loss_call, **changed)


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
    refuses(ConfigError, match, LFMMILoss, DENOMINATOR if denominator is None else denominator, **options)


LOG_PROBS, CTC = torch.zeros(4, 1, 3), ([[1]], [4], [1])
LOGITS, RNNT = torch.zeros(1, 2, 2, 3), ([[1]], [2], [1])
LEXICON = Lexicon.from_entries([("a", 1.0, ["k"])])
# What takes a number of this name.
NUMBERS = {
    "l2_regularize": lambda value: LFMMILoss(DENOMINATOR, l2_regularize=value),
    "leaky_hmm_coefficient": lambda value: MBRLoss(DENOMINATOR, leaky_hmm_coefficient=value),
    "consistency": lambda value: LFMMILoss(DENOMINATOR).adjust(consistency=value),
    "memory_budget": lambda value: ctc_loss(LOG_PROBS, *CTC, memory_budget=value),
    "delay_penalty": lambda value: ctc_loss(LOG_PROBS, *CTC, delay_penalty=value),
    "fastemit_lambda": lambda value: rnnt_loss(LOGITS, *RNNT, fastemit_lambda=value),
    "clamp": lambda value: rnnt_loss(LOGITS, *RNNT, clamp=value),
    "substitution": lambda value: Forgiveness(substitution=value),
    "deletion": lambda value: Forgiveness(deletion=value),
    "lm_weight": lambda value: Weights(value).check(),
    "edge_silence": lambda value: lm_phones([["a"]], LEXICON, edge_silence=value),
    "silence_prob": lambda value: Lexicon.from_entries([("a", 1.0, ["k"])], silence_prob=value),
    "ngram_order": lambda value: estimate_phone_lm([[1]], ngram_order=value),
}


@pytest.mark.parametrize("value", ["0.1", [0.1]])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_refused_by_name(name, value):
    refuses(
        ConfigError,
        f"{name} = {re.escape(repr(value))}; expected (a number|an integer)$",
        NUMBERS[name],
        value,
    )


@pytest.mark.parametrize("blank", ["0", 0.5, None])
def test_a_blank_that_is_no_integer_is_refused(blank):
    told = f"blank = {re.escape(repr(blank))}; expected a class of 3, or one counted from the end"
    refuses(ConfigError, told, lambda: rnnt_loss(LOGITS, *RNNT, blank=blank))


def test_several_denominators_must_be_of_one_width_and_chosen_by_name():
    graphs = {"a": DenominatorGraph(connected_graph(0), 12), "b": DENOMINATOR}
    widths = r"denominators have \[9, 12\] pdfs; expected one graph or more, all of one width"
    refuses(ConfigError, widths, LFMMILoss, graphs)
    loss, given = LFMMILoss({"a": DENOMINATOR, "b": DENOMINATOR}), (torch.zeros(1, 5, 9), [5], [PDF_7])
    unnamed = r"denominator_of is None; expected one of \['a', 'b'\] for each sequence"
    refuses(ConfigError, unnamed, loss, *given)


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
    told = r"'no_such_module' is needed here.*pip install 'fsachain\[graph\]'"
    refuses(MissingExtraError, told, require, "no_such_module", extra="graph")
    assert require("math", extra="graph") is math
