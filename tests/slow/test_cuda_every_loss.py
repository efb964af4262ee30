"""What holds of every loss holds of it on a device too, its kernels run on the host."""

import pytest
from device_arrays import needs_host_compiler
from test_every_loss import (
    test_a_sequence_has_the_same_bits_alone_and_with_any_number_of_threads,
    test_an_illegal_or_impossible_sequence_has_no_gradient_and_harms_no_other,
    test_any_order_of_the_scores_in_memory_gives_the_same_bits,
    test_padding_changes_no_bit_and_has_no_gradient,
)

from tools.cuda_on_host import pretended

__all__ = [
    "test_a_sequence_has_the_same_bits_alone_and_with_any_number_of_threads",
    "test_an_illegal_or_impossible_sequence_has_no_gradient_and_harms_no_other",
    "test_any_order_of_the_scores_in_memory_gives_the_same_bits",
    "test_padding_changes_no_bit_and_has_no_gradient",
]
pytestmark = needs_host_compiler


@pytest.fixture(autouse=True)
def on_a_device():
    with pretended() as device:
        yield
    assert device.launches
