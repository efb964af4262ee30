"""Losses inside functions that torch compiles whole: one graph for all values of options, transforms refused by name."""

import pytest
import torch
from loss_calls import BATCH, COUNTS, FRAMES, LFMMI, LOSSES, SCORES, TARGETS, logits
from test_torch_regimes import SEVERAL, close, gradient

from fsachain import (
    DenominatorGraph,
    Fsa,
    ctc_loss,
    hat_loss,
    multi_blank_loss,
    rnnt_loss,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    tdt_loss,
    total_log_prob,
)


@pytest.mark.parametrize("name", ["ctc", "rnnt", "hat", "simple", "mutual information", "lfmmi", "total"])
def test_forward_mode_is_refused_inside_of_a_compiled_function_too(name):
    def derivative(scores):
        return torch.func.jvp(LOSSES[name], (scores,), (scores,))[1]

    with pytest.raises(Exception, match="reverse mode only"):
        torch.compile(derivative, backend="aot_eager")(SCORES)


GIVEN = TARGETS, FRAMES, COUNTS
WITH_OPTION = {
    "rnnt": lambda y, value: rnnt_loss(logits(y), *GIVEN, blank=0, fastemit_lambda=value),
    "rnnt, delay": lambda y, value: rnnt_loss(logits(y), *GIVEN, blank=0, delay_penalty=value),
    "rnnt, clamp": lambda y, value: rnnt_loss(logits(y), *GIVEN, blank=0, clamp=value),
    "hat": lambda y, value: hat_loss(logits(y), *GIVEN, blank=0, fastemit_lambda=value),
    "tdt": lambda y, value: tdt_loss(
        logits(y), TARGETS % 3, FRAMES, COUNTS, durations=[1], blank=3, sigma=value
    ),
    "multi-blank": lambda y, value: multi_blank_loss(logits(y), *GIVEN, {4: 2}, blank=0, sigma=value),
    "simple": lambda y, value: rnnt_loss_simple(y[:, :3], y, TARGETS, 0, delay_penalty=value),
    "smoothed": lambda y, value: rnnt_loss_smoothed(y[:, :3], y, TARGETS, 0, delay_penalty=value),
    "ctc": lambda y, value: ctc_loss(y.transpose(0, 1), *GIVEN, inputs="logits", delay_penalty=value),
}


@pytest.mark.parametrize("name", WITH_OPTION)
def test_one_compiled_graph_serves_all_values_of_an_option(name):
    torch._dynamo.reset()
    loss = WITH_OPTION[name]
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for value in (0.1, 0.25, 0.7):
        close(compiled(SCORES, value), loss(SCORES, value))
        close(
            gradient(lambda scores, value=value: compiled(scores, value)),
            gradient(lambda scores, value=value: loss(scores, value)),
        )


def test_a_schedule_of_options_does_not_compile_anew_for_each_value():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda scores: LFMMI(scores, FRAMES, BATCH, xent_log_probs=scores.log_softmax(2)),
        fullgraph=True,
        backend="aot_eager",
    )
    before = LFMMI.l2_regularize
    try:
        with torch._dynamo.config.patch(error_on_recompile=False, recompile_limit=3):
            for step in range(12):
                LFMMI.adjust(l2_regularize=0.001 * (step + 1))
                expected = LFMMI(SCORES, FRAMES, BATCH, xent_log_probs=SCORES.log_softmax(2))
                close(compiled(SCORES), expected)
    finally:
        LFMMI.adjust(l2_regularize=before)


def test_a_batch_may_be_made_inside_of_a_compiled_function():
    torch._dynamo.reset()
    graph = DenominatorGraph(Fsa(1, [0, 0], [0, 0], [0, 1], [-0.5, -1.0], [0.0]), num_pdfs=5)

    def loss(scores):
        return total_log_prob(graph.batch(2), scores, FRAMES, leaky_hmm_coefficient=1e-5).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for scores in SEVERAL:
        close(compiled(scores), loss(scores))
        close(gradient(compiled, scores), gradient(loss, scores))
