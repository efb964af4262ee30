"""Memory of the transducer loss, as a benchmark measures it that uses the application."""

from pathlib import Path

import pytest

from tools.bench import tables


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(),
    reason="the system does not tell how much memory a process held",
)
def test_loss_and_gradient_in_place_take_two_percent_of_the_logits():
    assert max(tables.transducer_memory(8, 200, 50, 500).values()) <= 2.0
