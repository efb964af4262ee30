"""`transducer_loss`: the joiner inside, in chunks of frames."""

import pytest
import tolerances
import torch
from rnnt_inputs import BLANK, TYPES, WIDTH, close, make_targets
from torch import nn

from fsachain import rnnt_loss, transducer_loss
from fsachain.errors import ConfigError

FRAMES, LABELS, DIM = [9, 6, 7, 4], [3, 5, 0, 1], 8
SIZES = make_targets(), FRAMES, LABELS, BLANK


class Joiner(nn.Module):
    """tanh of the sum, dropout, and a linear layer."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.dropout, self.linear = nn.Dropout(dropout), nn.Linear(DIM, WIDTH)
        self.called = []

    def forward(self, encoder_out, predictor_out):
        self.called.append(encoder_out.shape[1])
        return self.linear(self.dropout(torch.tanh(encoder_out + predictor_out)))


def inputs(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (4, 9, DIM), (4, 6, DIM)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes
    ]


def run(joiner, given, chunk_frames=None, **options):
    """The loss and the gradients of inputs and parameters."""
    torch.manual_seed(5)
    loss = transducer_loss(*given, joiner, *SIZES, chunk_frames=chunk_frames, **options)
    wanted = [*given, *joiner.parameters()]
    return loss, torch.autograd.grad(loss, wanted)


@pytest.mark.parametrize(
    ("rnnt_type", "chunk_frames"), [*((kind, 4) for kind in TYPES), ("regular", 1), ("regular", None)]
)
def test_loss_and_gradients_are_those_of_the_logits_as_a_whole(rnnt_type, chunk_frames):
    joiner, given = Joiner().double(), inputs()
    options = {"rnnt_type": rnnt_type, "delay_penalty": 0.1, "fastemit_lambda": 0.2}
    loss, gradients = run(joiner, given, chunk_frames, **options)
    logits = joiner(given[0].unsqueeze(2), given[1].unsqueeze(1))
    expected = rnnt_loss(logits, *SIZES, **options)
    close(loss, expected)
    whole = torch.autograd.grad(expected, [*given, *joiner.parameters()])
    for ours, theirs in zip(gradients, whole, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_chunks_of_one_frame_and_of_all_give_the_same_with_dropout_too(dropout):
    joiner, given = Joiner(dropout).double(), inputs()
    loss, gradients = run(joiner, given, 1)
    for chunk_frames in (4, 9):
        again, others = run(joiner, given, chunk_frames)
        close(again, loss)
        for ours, theirs in zip(others, gradients, strict=True):
            close(ours, theirs)
    if dropout:
        without, _ = run(joiner.eval(), given)
        assert abs(float((without - loss).detach())) > tolerances.YES_OR_NO / 10


def test_dropout_is_repeated_in_backward():
    """The gradient is that of the very loss: a step against it of one part in a million changes it by that part."""
    joiner, given = Joiner(0.5).double(), inputs()
    _, gradients = run(joiner, given)
    step, weight = 1e-6, joiner.linear.weight
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            weight += sign * step * direction
        values.append(run(joiner, given)[0])
        with torch.no_grad():
            weight -= sign * step * direction
    close((values[0] - values[1]) / (2 * step), (gradients[2] * direction).sum(), tolerances.DIFFERENCE)


def test_an_illegal_sequence_harms_neither_the_others_nor_the_parameters():
    joiner, given = Joiner().double(), inputs()
    with torch.no_grad():
        given[0][1, 3, 2] = torch.nan
    torch.manual_seed(5)
    losses = transducer_loss(*given, joiner, *SIZES, reduction="none")
    assert torch.isnan(losses[1]) and torch.isfinite(losses[[0, 2, 3]]).all()
    gradients = torch.autograd.grad(losses[[0, 2, 3]].sum(), [*given, *joiner.parameters()])
    clean = inputs()
    others = transducer_loss(*clean, joiner, *SIZES, reduction="none")[[0, 2, 3]]
    expected = torch.autograd.grad(others.sum(), [*clean, *joiner.parameters()])
    for ours, theirs in zip(gradients, expected, strict=True):
        close(ours, theirs)


def test_a_function_names_its_parameters():
    weight = torch.randn(WIDTH, DIM, dtype=torch.float64, requires_grad=True)
    given = inputs()

    def joiner(encoder, predictor):
        return torch.tanh(encoder + predictor) @ weight.T

    loss = transducer_loss(*given, joiner, *SIZES, parameters=[weight])
    expected = rnnt_loss(joiner(given[0].unsqueeze(2), given[1].unsqueeze(1)), *SIZES)
    close(loss, expected)
    (ours,) = torch.autograd.grad(loss, weight)
    (theirs,) = torch.autograd.grad(expected, weight)
    close(ours, theirs)
    with pytest.raises(ConfigError, match="parameters"):
        transducer_loss(*given, joiner, *SIZES)


def test_nothing_is_kept_that_has_all_of_frames_labels_and_classes():
    """The largest tensor that backward keeps is smaller than the logits of half the frames."""
    joiner, given = Joiner().double(), inputs()
    losses = transducer_loss(*given, joiner, *SIZES, reduction="none", chunk_frames=1)
    node = losses.grad_fn.next_functions[0][0]
    kept = [
        node.scores.values.numel(),
        *(s.numel() for s in node.scores.stats),
        *(x.numel() for x in node.saved_tensors),
    ]
    assert max(kept) < 4 * 5 * 6 * WIDTH
