"""Every tolerance of the test suite, once.

The first group is the contract for all backends against the float64 oracle; the second is what the values that other
programs computed allow, most of which are in float32.
"""

from __future__ import annotations

ENUMERATION = 1e-10  # reference against path enumeration, absolute

LOG_PROB_RELATIVE = 1e-5  # times max(10, |log Z|)
LOG_PROB_FLOOR = 10.0
OBJF_PER_FRAME = 1e-4  # num - den, per frame
OCCUPANCY = 1e-4  # float32 occupancy, absolute
ROW_SUM = 1e-4
FLOAT64 = 1e-9  # float64 scores through any backend against the oracle, times max(1, |log Z|)

KALDI_DERIVATIVE = 1e-4
KALDI_DERIVATIVE_HOT = 2e-3  # activations of +-1e3
KALDI_INITIAL_PROBS = 1e-6
KALDI_PHONE_LM = 1e-5
KALDI_DEN_PATH_TOTAL = 0.25
KALDI_DEN_PATH_SHORT = 0.01  # per frame, T < 20
KALDI_DEN_PATH_LONG = 5e-3  # per frame, T >= 20
KALDI_SUPERVISION_PATH = 0.01  # whole path; each weighted arc is quantised to 1/1024
PEER_COST_RELATIVE = 1e-6
PEER_FSA_GRADIENT = 1e-4
PEER_CLAMP_GRADIENT = 2e-4
PEER_CTC_GRADIENT = 5e-4

LUMPED_PATH = 1e-9  # merging states of equal futures or proportional pasts is exact but for rounding
GRAPH_COST = 1e-4  # float32 costs of an OpenFst path, added up
ARPA_PROBABILITY = 1e-7  # ARPA text keeps nine decimals

FBANK = 2e-3  # log mel energies: a float32 FFT against float64, natural log, absolute
NORMALISED_MEAN = 1e-5  # of float32 features, in standard deviations
NORMALISED_VARIANCE = 1e-4
NETWORK_FLOAT64 = 1e-10  # an utterance alone against the same in a batch
NETWORK_FLOAT32 = 1e-5
ORTHONORMAL = 1e-4  # entries of M M^T after convergence, relative to its diagonal


def log_prob_tolerance(log_prob: float) -> float:
    """The contract's bound on |d log Z|."""
    return LOG_PROB_RELATIVE * max(LOG_PROB_FLOOR, abs(log_prob))
