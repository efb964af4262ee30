"""Topologies say which pdf classes a phone spends, and refuse what is no topology."""

import math

import pytest

from fsachain.errors import GraphError
from fsachain.graph.topology import HmmState, Topology

SKIPS = Topology((HmmState(0, 0, -math.inf, skips=((2, -0.5),)), HmmState(1, None)))


@pytest.mark.parametrize("topology", [Topology.chain(), Topology.left_to_right(4), Topology.ctc(), SKIPS])
def test_survives_the_dictionary_form(topology):
    assert Topology.from_dict(topology.to_dict()) == topology


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology(()), "at least one emitting state"),
        (lambda: Topology.left_to_right(0), "num_states = 0"),
        (lambda: Topology((HmmState(0, 2),)), r"pdf classes \[0, 2\]"),
        (lambda: Topology((HmmState(0, 1, 0.5),)), r"states\[0\].leave_log_prob = 0.5"),
        (lambda: Topology((HmmState(0, 1, -math.inf), HmmState(2, 3))), r"leave_log_prob = -inf"),
        (lambda: Topology((HmmState(0, 0, skips=((2, 0.5),)), HmmState(1, 1))), r"skips: state 2 = 0.5"),
        (lambda: Topology((HmmState(0, 0, skips=((2, -1), (2, -1))), HmmState(1, 1))), r"leads to \[2, 2\]"),
        (lambda: Topology((HmmState(0, 0, -1, -1, ((2, -1.0),)),)), r"leads to \[2\]: expected .* among \[\]"),
        (
            lambda: Topology(
                (
                    HmmState(0, 0, skips=((2, -1.0),)),
                    HmmState(1, 1, -math.inf, skips=((0, -1.0),)),
                    HmmState(2, 2, -math.inf, skips=((1, -1.0),)),
                )
            ),
            "no way leads from",
        ),
    ],
)  # fmt: skip
def test_refuses_by_name(make, message):
    with pytest.raises(GraphError, match=message):
        make()
