"""The public names of `fsachain`, each imported on first use."""

import ast
import inspect
from pathlib import Path

import docs_inputs
import numpy as np
import pytest
import torch
from attribute_docs import undocumented_attributes
from loss_calls import BATCH, FRAMES, LFMMI, LOSSES, SCORES, TARGETS
from random_graphs import connected_graph, left_to_right_graph
from refusals import refuses
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import fsachain
from fsachain import DenominatorGraph, LFMMILoss, TableBatch, do_rnnt_pruning, total_log_prob
from fsachain.loss.autograd import _placed_there
from fsachain.loss.pruned import check_simple
from tools.cuda_on_host import pretended


def test_type_checkers_see_the_same_names_in_the_same_modules():
    stub = ast.parse(Path(fsachain.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == fsachain._HOME_OF
    assert all(alias.asname == alias.name for node in imports for alias in node.names)


def test_every_public_name_is_listed():
    assert dir(fsachain) == sorted([*fsachain.__all__, "__version__"])


def test_every_name_of_the_library_is_documented():
    """The application's names: asr/test_public_names.py."""
    library = [name for name, home in fsachain._HOME_OF.items() if ".asr." not in home]
    assert len(library) > 80
    assert [name for name in library if not getattr(fsachain, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error():
    refuses(AttributeError, "module 'fsachain' has no attribute 'forward'", getattr, fsachain, "forward")


def library_classes():
    values = [getattr(fsachain, name) for name, home in fsachain._HOME_OF.items() if ".asr." not in home]
    return [value for value in values if inspect.isclass(value)]


def test_every_attribute_is_in_the_docstring_of_its_class():
    assert len(library_classes()) > 30
    for kind in library_classes():
        assert undocumented_attributes(kind) == [], kind


def test_records_and_graphs_of_many_sequences_print_as_one_line(tmp_path):
    given = docs_inputs.phone_graphs(tmp_path)
    lexicon, tree, denominator = given["lexicon"], given["tree"], given["denominator"]
    numerator = fsachain.build_numerator(given["transcripts"]["utterance-1"], lexicon, tree)
    scores, graphs = torch.zeros(200, 40, tree.num_pdfs), [numerator] * 200
    losses = fsachain.LFMMILoss(denominator), fsachain.MBRLoss(denominator)
    targets = torch.ones(2, 3, dtype=torch.int32)
    lattice = fsachain.rnnt_lattice(torch.zeros(2, 600, 4, 4), targets, [600, 600], [3, 3])
    shown = [
        *(lexicon, tree, denominator, numerator, numerator.fsa, given["phone_lm"]),
        *(fsachain.compile_table(numerator.fsa), fsachain.TableBatch.pack(graphs)),
        *(fsachain.forward_backward(graphs, scores), fsachain.best_path(graphs, scores)),
        *(fsachain.n_best(graphs, scores, 2), fsachain.sample_paths(graphs, scores, 2, seed=1)),
        *(loss.objective(scores, [40] * 200, graphs) for loss in losses),
        *(lattice, lattice.occupancy(), lattice.best_alignment()[0]),
    ]
    for one in shown:
        text = repr(one)
        assert text.startswith(type(one).__name__) and "\n" not in text and len(text) < 500, text
    assert "objf=" in repr(shown[-5]) and "num_log_prob=float64 [200]" in repr(shown[-5])


def test_a_record_of_many_values_shows_their_shapes():
    path = fsachain.BestPath(np.zeros(2), [np.zeros(3, np.int32)] * 2, [], [])
    assert repr(path) == "BestPath(score=float64 [2], pdfs=[int32 [3], int32 [3]], states=[], arcs=[])"


# What torch may ask of every loss: one derivative in reverse mode, twice the same, no second one, none in forward mode.


@pytest.mark.parametrize("name", LOSSES)
def test_backward_twice_gives_the_same_and_differentiating_twice_raises(name):
    scores = SCORES.clone().requires_grad_()
    value = LOSSES[name](scores)
    if name == "rnnt in place":  # whose backward runs once
        (first,) = torch.autograd.grad(value, scores)
        assert torch.isfinite(first).all() and first.any()
        return
    (first,) = torch.autograd.grad(value, scores, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(value, scores, create_graph=True)
    assert torch.isfinite(first).all() and first.any()
    assert torch.equal(first, kept) and torch.equal(second, kept)
    with pytest.raises(RuntimeError, match="fsachain gives first derivatives only"):
        torch.autograd.grad(second.square().sum(), scores)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_float64_but_ctc_of_float32_as_in_torch(name):
    expected = torch.float32 if name.startswith("ctc") else torch.float64
    assert LOSSES[name](SCORES.clone()).dtype == expected


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"chunks"}))
def test_forward_mode_is_refused_and_not_taken_for_zero(name):
    refuses(RuntimeError, "reverse mode only", torch.func.jacfwd(LOSSES[name]), SCORES)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(SCORES, torch.ones_like(SCORES))
        refuses(RuntimeError, "reverse mode only", LOSSES[name], dual)


class Other(torch.Tensor):
    """A subclass, which may want to see each operator."""


@pytest.mark.parametrize("name", ["lfmmi", "ctc", "rnnt"])
def test_tracers_transforms_and_subclasses_meet_the_operator(name):
    loss = LOSSES[name]
    assert f"fsachain.{name}" in make_fx(loss)(SCORES).code
    several = torch.stack([SCORES, 2.0 * SCORES])
    assert torch.equal(torch.func.vmap(loss)(several), torch.stack([loss(each) for each in several]))
    scores = SCORES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(scores), scores)
    assert torch.equal(torch.func.grad(loss)(SCORES), expected)
    found = loss(SCORES.as_subclass(Other))
    assert type(found) is Other and torch.equal(found, loss(SCORES))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(loss(mode.from_tensor(SCORES)), FakeTensor)


class Copies(TorchDispatchMode):
    """The operators that bring a tensor of the host to a device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, given=(), options=None):
        found = operator(*given, **(options or {}))
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        if isinstance(found, torch.Tensor) and found.is_cuda and any(one.is_cpu for one in tensors):
            self.names.append(str(operator))
        return found


def test_what_the_host_has_gets_to_a_device_by_memory_that_a_captured_graph_may_read_again():
    """Torch's own copies read the host's memory as it is when the graph is replayed."""
    pytest.importorskip("cupy_backends")
    ranges = torch.zeros(2, 4, 2, dtype=torch.int64)
    calls = {
        "symbols and boundary": lambda am, lm: check_simple(lm, am, TARGETS, 0, None, "regular", 0.1),
        "frame weights": lambda am, _: LFMMI(am, FRAMES, BATCH, frame_weights=torch.ones(2, 4)),
        "ranges": lambda am, lm: do_rnnt_pruning(am, lm, ranges),
    }
    for name, call in calls.items():
        with FakeTensorMode(allow_non_fake_inputs=True), Copies() as copies:
            call(*(torch.empty(2, count, 5, device="cuda") for count in (4, 3)))
        assert set(copies.names) == {"fsachain.placed.default"}, name
    with pretended():
        for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.float64):
            values = torch.tensor([[1, 0, 3], [4, 5, 6]]).T.to(dtype)
            found = _placed_there.kernel((values, SCORES))
            assert torch.equal(found, values) and found.data_ptr() != values.data_ptr()


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7),
    reason="the compiler of torch 2.4 cannot follow a module of ours",
)
def test_lists_of_graphs_are_to_be_packed_under_fullgraph_alone():
    """Elsewhere the compiled call goes on outside of the compiled part. A memory budget breaks no graph."""
    graphs, lengths = [left_to_right_graph(n, 3, 9) for n in range(2)], [12, 9]
    scores = torch.randn(2, 12, 9, generator=torch.Generator().manual_seed(1))
    loss = LFMMILoss(DenominatorGraph(connected_graph(0), 9), memory_budget=0)
    calls = {
        "numerators": lambda given: loss(scores, lengths, given),
        "batch": lambda given: total_log_prob(given, scores, lengths, memory_budget=0),
    }
    for name, call in calls.items():
        torch._dynamo.reset()
        whole = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert torch.equal(whole(TableBatch.pack(graphs)), call(graphs))
        told = f"{name} is a list; expected a TableBatch .*pack graphs first"
        with pytest.raises(RuntimeError, match=told):  # with lines of torch's own
            whole(graphs)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(call, backend="aot_eager")(graphs), call(graphs))
