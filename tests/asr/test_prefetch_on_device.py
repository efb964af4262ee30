"""A training on a device that the CPU stands for."""

import threading

import pytest
import tolerances
from toy_training import corpus, lfmmi_trainer

from fsachain.backends.cuda import launch as cuda_launch
from tools.cuda_on_host import pretended, skip_reason


@pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))
def test_a_training_lays_numerators_out_by_the_thread_that_is_ahead_of_it(tmp_path, monkeypatch):
    """Each once in two epochs; the call itself finds them laid out, and the loss is that of a CPU."""
    by = []
    real = cuda_launch.lay_out

    def noted(tables, division):
        by.extend([threading.current_thread().name] * len(tables))
        return real(tables, division)

    monkeypatch.setattr(cuda_launch, "lay_out", noted)
    examples, numerators = corpus(6)
    settings = {"num_epochs": 2, "batch_size": 4, "checkpoint_every": 0}
    expected = lfmmi_trainer(tmp_path / "cpu", numerators, **settings).fit(examples)
    examples, numerators = corpus(6)
    with pretended(multiprocessors=2) as device:
        found = lfmmi_trainer(tmp_path / "gpu", numerators, **settings).fit(examples)
    assert [name.startswith("fsachain-prefetch") for name in by] == [True] * 6 and device.launches
    for ours, theirs in zip(found.epochs, expected.epochs, strict=True):
        assert ours["train"]["objf"] == pytest.approx(theirs["train"]["objf"], abs=tolerances.OBJF_PER_FRAME)
