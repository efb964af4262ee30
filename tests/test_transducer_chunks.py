"""`transducer_loss`: the joiner inside, in chunks of frames."""

import contextlib

import pytest
import tolerances
import torch
from rnnt_inputs import BLANK, TYPES, WIDTH, close, close_with_gradients, make_targets
from torch import nn

from fsachain import rnnt_loss, transducer_loss
from fsachain.errors import ConfigError
from fsachain.loss.chunks import precision_of

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


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    rows = (torch.randn(4, size, DIM, generator=generator, dtype=torch.float64) for size in (9, 6))
    return [x.to(dtype).requires_grad_() for x in rows]


def run(joiner, given, chunk_frames=None):
    """The loss and the gradients of inputs and parameters."""
    torch.manual_seed(5)
    loss = transducer_loss(*given, joiner, *SIZES, chunk_frames=chunk_frames)
    return loss, torch.autograd.grad(loss, [*given, *joiner.parameters()])


@pytest.mark.parametrize(
    ("rnnt_type", "chunk_frames"), [*((kind, 4) for kind in TYPES), ("regular", 1), ("regular", None)]
)
def test_loss_and_gradients_are_those_of_the_logits_as_a_whole(rnnt_type, chunk_frames):
    joiner, given = Joiner().double(), inputs()
    options = {"rnnt_type": rnnt_type, "delay_penalty": 0.1, "fastemit_lambda": 0.2}
    loss = transducer_loss(*given, joiner, *SIZES, chunk_frames=chunk_frames, **options)
    assert max(joiner.called) == (chunk_frames or 9)
    logits = joiner(given[0].unsqueeze(2), given[1].unsqueeze(1))
    close_with_gradients(loss, rnnt_loss(logits, *SIZES, **options), [*given, *joiner.parameters()])


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
    close_with_gradients(loss, expected, weight)
    with pytest.raises(ConfigError, match="parameters"):
        transducer_loss(*given, joiner, *SIZES)


def test_nothing_is_kept_that_has_all_of_frames_labels_and_classes():
    """The largest tensor that backward keeps is smaller than the logits of half the frames."""
    joiner, given = Joiner().double(), inputs()
    losses = transducer_loss(*given, joiner, *SIZES, reduction="none", chunk_frames=1)
    kept = []
    nodes = [losses.grad_fn]
    while nodes:
        node = nodes.pop()
        kept += getattr(node, "saved_tensors", ())
        nodes += [below for below, _ in node.next_functions if below is not None]
    assert kept and max(tensor.numel() for tensor in kept) < 4 * 5 * 6 * WIDTH


# The joiner of `transducer_loss` is called again in backward: with the same random numbers and the same autocast.


class OnDevice(torch.Tensor):
    """A tensor of the host that says it is on a GPU, whose random numbers are `DeviceNumbers`."""

    is_cuda = True


class DeviceNumbers:
    """The random state of a device: a count of draws."""

    def __init__(self, monkeypatch):
        self.state, self.calls = 0, []
        monkeypatch.setattr(torch.cuda, "get_rng_state", self.get)
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.set)

    def get(self, device):
        self.calls.append(("get", device, self.state))
        return torch.tensor([self.state])

    def set(self, state, device):
        self.calls.append(("set", device, int(state)))
        self.state = int(state)

    def draw(self, shape):
        """Numbers of a stream that every draw takes on."""
        self.state += 1
        generator = torch.Generator().manual_seed(self.state)
        return torch.rand(shape, generator=generator, dtype=torch.float64)


class DeviceDropout(Joiner):
    """A joiner whose dropout draws from the device."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.drawn = numbers, []

    def forward(self, encoder_out, predictor_out):
        hidden = torch.tanh(encoder_out + predictor_out)
        self.drawn.append(self.numbers.state)
        return self.linear(hidden * (self.numbers.draw(hidden.shape) > 0.4))


def test_the_random_numbers_of_a_device_are_repeated_and_go_on_as_if_they_had_not_been(monkeypatch):
    numbers = DeviceNumbers(monkeypatch)
    joiner = DeviceDropout(numbers).double()
    given = [x.detach().as_subclass(OnDevice).requires_grad_() for x in inputs()]
    numbers.state = 100
    losses = transducer_loss(*given, joiner, *SIZES, reduction="none")
    assert numbers.state == 109, "a draw for each of nine frames; that of the first look is taken back"
    numbers.state = 500
    losses.sum().backward()
    assert numbers.state == 500
    assert joiner.drawn == [100, *range(100, 109), *range(100, 109)]
    assert {device for _, device, _ in numbers.calls} == {torch.device("cpu")}
    assert all(torch.isfinite(x.grad).all() for x in given) and joiner.linear.weight.grad.any()


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_under_autocast_chunks_give_what_the_logits_as_a_whole_give(dropout, inside):
    results = []
    for whole in (False, True):
        joiner, given = Joiner(dropout), inputs(torch.float32)
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if whole:  # a frame at a time where there is dropout, as the chunks are
                step = 1 if dropout else 9
                encoders = given[0].unsqueeze(2).split(step, dim=1)
                logits = torch.cat([joiner(part, given[1].unsqueeze(1)) for part in encoders], dim=1)
                assert logits.dtype == torch.bfloat16
                loss = rnnt_loss(logits, *SIZES)
            else:
                loss = transducer_loss(*given, joiner, *SIZES, chunk_frames=4)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        results.append((loss.detach(), *(x.grad for x in (*given, *joiner.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        # Gradients of weights are rounded to bfloat16 in each chunk.
        close(ours, theirs, tolerances.ELEMENT_ROUNDING["bfloat16"])


def test_what_the_loss_casts_is_not_taken_for_what_has_a_gradient():
    """Weights that autocast has cast where no gradient is made would stay without one in its cache."""
    joiner, given = Joiner(), inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = transducer_loss(*given, joiner, *SIZES)
        loss.backward(retain_graph=True)
        first = joiner.linear.weight.grad.clone()
        loss.backward()
        joiner.linear(given[0]).float().sum().backward()
    assert first.any() and not torch.equal(joiner.linear.weight.grad, 2 * first)


def test_autocast_is_that_of_the_call_on_the_host_and_on_the_device(monkeypatch):
    """Backward on a GPU runs in another thread, which knows nothing of the autocast of the call."""
    entered = []

    @contextlib.contextmanager
    def note(kind, dtype, enabled, cache_enabled):
        entered.append((kind, dtype, enabled, cache_enabled))
        yield

    class Like:
        device = torch.device("cuda:1")

    states = {"cpu": (False, torch.bfloat16), "cuda": (True, torch.float16)}
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: states[kind][0])
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: states[kind][1])
    again = precision_of(Like())
    states["cuda"] = (False, torch.bfloat16)
    monkeypatch.setattr(torch, "autocast", note)
    with again():
        pass
    assert entered == [("cpu", torch.bfloat16, False, False), ("cuda", torch.float16, True, False)]
