"""What holds of losses on the host holds of them on a device too, their kernels run on the host."""

import pytest
from device_arrays import needs_host_compiler
from test_arcs_and_states import (  # noqa: F401
    test_gradients_are_expected_counts_times_what_comes_in_at_every_scale,
    test_gradients_come_to_those_who_want_them_and_are_right,
)
from test_ctc_loss import (  # noqa: F401
    test_a_delay_penalty_is_paid_at_the_first_frame_of_each_label,
    test_a_loss_is_minus_log_z_of_the_graph_that_the_topology_names,
    test_gradients_are_derivatives_also_where_rows_are_not_normalized,
    test_log_priors_are_taken_off_the_log_probabilities,
    test_no_frames_spell_the_empty_target_and_nothing_else,
    test_reductions_and_forms_of_targets_are_those_of_torch,
)
from test_every_loss import (  # noqa: F401
    test_a_sequence_has_the_same_bits_alone_and_with_any_number_of_threads,
    test_an_illegal_or_impossible_sequence_has_no_gradient_and_harms_no_other,
    test_any_order_of_the_scores_in_memory_gives_the_same_bits,
    test_padding_changes_no_bit_and_has_no_gradient,
)
from test_forgiving_losses import (  # noqa: F401
    test_a_frame_on_which_nothing_is_possible_is_not_forgiven,
    test_a_loss_is_the_sum_over_all_paths_and_never_negative,
    test_with_infinite_penalties_loss_and_gradient_are_the_plain_ones_packed_too,
)
from test_loss import (  # noqa: F401
    test_a_score_that_only_the_denominator_may_not_read_excludes_its_sequence,
    test_an_impossible_sequence_leaves_every_sum,
    test_every_field_of_the_record_and_the_gradient_follow_their_formulas,
    test_num_minus_den_is_met_per_frame_at_every_scale,
    test_several_denominators_equal_separate_losses,
    test_what_stands_in_the_padding_changes_no_bit,
)
from test_memory_budget import test_sequences_without_frames_need_no_budget  # noqa: F401
from test_rnnt_loss import (  # noqa: F401
    test_clamp_limits_each_entry_before_the_incoming_gradient,
    test_fastemit_counts_labels_more_and_leaves_the_loss,
    test_packed_logits_give_the_bits_of_padded_ones,
    test_the_gradient_in_place_has_the_same_bits_and_the_logits_memory,
    test_value_and_gradient_are_those_of_plain_loops,
    test_zero_infinity_counts_an_impossible_sequence_as_nothing_and_hides_no_nan,
)
from test_rnnt_pruned import (  # noqa: F401
    test_a_pruned_loss_is_that_of_logits_of_minus_infinity_elsewhere,
    test_a_range_of_all_labels_is_the_full_loss,
    test_the_simple_loss_is_right_at_any_magnitude,
    test_the_simple_loss_is_that_of_the_sum_of_am_and_lm,
    test_the_smoothed_scores_are_mixtures,
)
from test_transducer_chunks import (  # noqa: F401
    test_chunks_of_one_frame_and_of_all_give_the_same_with_dropout_too,
    test_loss_and_gradients_are_those_of_the_logits_as_a_whole,
)
from test_transducer_grid import (  # noqa: F401
    test_every_label_is_emitted_once_and_every_frame_passed,
    test_log_z_is_minus_the_loss,
    test_the_best_alignment_is_a_path_of_its_score,
)
from test_transducer_variants import (  # noqa: F401
    test_clamp_limits_entries_of_blanks_and_durations_too,
    test_losses_with_durations_are_those_of_plain_loops,
    test_the_factorised_loss_is_that_of_its_distribution,
)

from tools.cuda_on_host import pretended

pytestmark = needs_host_compiler


@pytest.fixture
def backend():
    return "auto"


@pytest.fixture(autouse=True)
def on_a_device(request):
    with pretended() as device:
        yield
    assert device.launches or "MBR" in request.node.name  # which the host computes
