"""What the CTC loss says about wrong input, and what torch's rules ask of its operators."""

import warnings

import numpy as np
import pytest
import torch
from ctc_inputs import random_batch

from fsachain import BackendUnavailable, ConfigError, CTCLoss, DataError, ShapeError, ctc_loss
from fsachain.loss.ctc import NormalizationWarning

SCORES = torch.zeros(6, 2, 5).log_softmax(-1)
GOOD = {"targets": [[1, 2], [3, 0]], "input_lengths": [6, 5], "target_lengths": [2, 1]}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            {"targets": [[1, 5], [3, 0]]},
            DataError,
            r"anna: targets\[0\]\[1\] = 5; expected a class in \[0, 5\)",
        ),
        ({"targets": [[1, 2], [-1, 0]]}, DataError, r"bert: targets\[1\]\[0\] = -1"),
        (
            {"targets": [[1, 0], [3, 0]]},
            DataError,
            r"anna: targets\[0\]\[1\] = 0; .* other than the blank, 0",
        ),
        ({"targets": [[1.0, 2.0], [3.0, 0.0]]}, ShapeError, "targets has dtype float32; expected integers"),
        ({"targets": [1, 2, 3, 4]}, ShapeError, "target_lengths add up to 3; expected 4"),
        ({"targets": [[[1]]]}, ShapeError, r"targets has shape \[1, 1, 1\]; expected \[2, S\]"),
        ({"targets": "ab"}, ShapeError, "targets is no tensor of integers"),
        ({"input_lengths": [6, 7]}, ShapeError, r"bert: input_lengths\[1\] = 7; expected 0 to 6"),
        ({"input_lengths": [-1, 6]}, ShapeError, r"anna: input_lengths\[0\] = -1"),
        ({"input_lengths": [6.0, 6.0]}, ShapeError, "input_lengths has shape .2. and dtype float32"),
        ({"input_lengths": [6]}, ShapeError, r"input_lengths has shape \[1\]"),
        ({"target_lengths": [3, 1]}, ShapeError, r"anna: target_lengths\[0\] = 3; expected 0 to 2"),
        ({"target_lengths": [2, -1]}, ShapeError, r"bert: target_lengths\[1\] = -1"),
        ({"blank": 5}, ConfigError, "blank = 5; expected a class of log_probs, 0 to 4"),
        ({"blank": -1}, ConfigError, "blank = -1"),
        ({"reduction": "max"}, ConfigError, "reduction = 'max'; expected one of"),
        ({"inputs": "scores"}, ConfigError, "inputs = 'scores'"),
        ({"unnormalized": True}, ConfigError, "unnormalized = True"),
        ({"topology": "left"}, ConfigError, "topology = 'left'"),
        ({"log_priors": torch.zeros(4)}, ShapeError, r"log_priors has shape \[4\]; expected 5 finite"),
        ({"log_priors": torch.full((5,), torch.inf)}, ShapeError, "expected 5 finite numbers"),
        ({"delay_penalty": float("nan")}, ConfigError, "delay_penalty = nan"),
        ({"memory_budget": -1.0}, ConfigError, "memory_budget = -1.0"),
        ({"names": ["anna"]}, ShapeError, "names has 1 entries; expected 2"),
        ({"backend": "tpu"}, BackendUnavailable, "backend 'tpu': no backend has this name"),
        ({"backend": "cuda"}, BackendUnavailable, "backend 'cuda' has no CTC .*; available: cpu, reference"),
        ({"log_probs": SCORES[:, :0]}, ShapeError, "log_probs has no sequences"),
        ({"log_probs": SCORES[0, 0]}, ShapeError, r"log_probs has shape \[5\]; expected \[T, N, C\]"),
        ({"log_probs": SCORES.long()}, ShapeError, "log_probs has dtype torch.int64"),
        ({"log_probs": SCORES.numpy()}, ShapeError, "log_probs is a ndarray; expected a torch tensor"),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(wrong, error, message):
    arguments = {"log_probs": SCORES, "names": ["anna", "bert"], **GOOD, **wrong}
    if "log_probs" in wrong:
        del arguments["names"]
    with pytest.raises(error, match=message):
        ctc_loss(**arguments)


def unnormalized_scores(dtype=torch.float32):
    scores = SCORES.clone()
    scores[4, 1] += 0.5
    scores[1, 0] += 0.01
    return scores.to(dtype)


def test_rows_that_do_not_sum_to_one_are_named_in_an_error():
    message = r"bert: the probabilities of frame 4 sum to 1.64872; expected 1: .*inputs='logits'"
    with pytest.raises(DataError, match=message):
        ctc_loss(unnormalized_scores(), names=["anna", "bert"], unnormalized="error", **GOOD)


def test_rows_that_do_not_sum_to_one_give_one_warning():
    """Both rows have their turn in the same call, and whichever is seen, the worse of them is named."""
    loss = CTCLoss()
    with pytest.warns(
        NormalizationWarning, match="sequence 1: the probabilities of frame 4 sum to 1.64872"
    ) as said:
        for _ in range(6):
            loss(unnormalized_scores(), **GOOD)
    assert len(said) == 1 and said[0].filename == __file__, "the caller's line, not the library's"


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("frame", range(5))
def test_three_calls_look_at_every_frame_to_warn_and_one_to_raise(frame, backend):
    scores = SCORES.clone()
    scores[frame, 1] += 0.5
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        counts = []
        for _ in range(3):
            ctc_loss(scores, **GOOD, backend=backend)
            counts.append(len(said))
    assert counts[-1] == 1, "once, and then nothing is looked at any more"
    with pytest.raises(DataError, match=f"the probabilities of frame {frame} sum"):
        ctc_loss(scores, **GOOD, backend=backend, unnormalized="error")


@pytest.mark.parametrize(
    ("scores", "options"),
    [
        (unnormalized_scores(), {"unnormalized": "ignore"}),
        (unnormalized_scores(), {"inputs": "logits"}),
        (torch.where(torch.arange(6)[:, None, None] < torch.tensor([6, 5])[:, None], SCORES, 3.0), {}),
        *[(SCORES.to(dtype), {}) for dtype in (torch.float16, torch.bfloat16, torch.float64)],
        (torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0)).mul(90).log_softmax(-1), {}),
        (torch.randn(6, 2, 999, generator=torch.Generator().manual_seed(0)).log_softmax(-1), {}),
        (torch.randn(6, 2, 999, generator=torch.Generator().manual_seed(0)).log_softmax(-1).bfloat16(), {}),
    ],
)
def test_nothing_is_said_where_nothing_is_wrong_or_nothing_is_asked(scores, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ctc_loss(scores, **GOOD, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [3, 16, 40])
@pytest.mark.parametrize("value", [0.0, 0.002, 5.0, 89.0, 1e30, -0.002, -np.inf, np.nan])
def test_one_wrong_row_is_found_whatever_its_size(dtype, classes, value):
    scores = torch.zeros(6, 2, classes, dtype=dtype).log_softmax(-1)
    scores[4, 0] += value
    arguments = {**GOOD, "targets": [[1, 2], [1, 0]], "unnormalized": "error"}
    if value == 0.0:
        assert ctc_loss(scores, **arguments) > 0.0
    else:
        with pytest.raises(DataError, match="sequence 0: the probabilities of frame 4"):
            ctc_loss(scores, **arguments)


def test_what_the_caller_changes_before_backward():
    """Scores that changed are an error of torch; labels and lengths have done their part."""
    batch = random_batch(3)
    leaf = batch.leaf()
    targets, frames, labels = (torch.as_tensor(x).clone() for x in batch.arguments()[:3])
    (expected,) = torch.autograd.grad(ctc_loss(leaf, *batch.arguments(), inputs="logits"), leaf)
    loss = ctc_loss(leaf, targets, frames, labels, batch.blank, inputs="logits")
    targets.fill_(0), frames.fill_(1), labels.fill_(0)
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], expected)
    changed = 1.0 * leaf
    loss = ctc_loss(changed, *batch.arguments(), inputs="logits")
    with torch.no_grad():
        changed.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_module_keeps_its_priors_with_its_state():
    loss = CTCLoss(log_priors=torch.arange(5.0), topology="compact")
    assert loss.state_dict()["log_priors"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert "topology='compact'" in repr(loss)
