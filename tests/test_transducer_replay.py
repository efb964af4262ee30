"""The joiner of `transducer_loss` is called again in backward: with the same random numbers and the same autocast."""

import contextlib

import pytest
import tolerances
import torch
from test_transducer_chunks import SIZES, Joiner, close, inputs

from fsachain import rnnt_loss, transducer_loss
from fsachain.loss.chunks import precision_of


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
