"""Every tolerance of the test suite, once.

The first group is the contract for all backends against the float64 oracle; the second is what the values that other
programs computed allow, most of which are in float32.
"""

import numpy as np

ENUMERATION = 1e-10  # reference against path enumeration, absolute

LOG_PROB_RELATIVE = 1e-5  # times max(10, |log Z|)
LOG_PROB_FLOOR = 10.0
OBJF_PER_FRAME = 1e-4  # num - den, per frame
OCCUPANCY = 1e-4  # float32 occupancy, absolute
ROW_SUM = 1e-4
FLOAT64 = 1e-9  # float64 scores through any backend against the oracle, times max(1, |log Z|)
ROUNDING = 1e-12  # the same float64 sum in another order or scaled, absolute or relative
FEW_FLOAT32_TERMS = 1e-5  # sums of a few float32 values of magnitude one to ten, absolute or relative
FLOAT32_ROUNDING = 1e-7  # float32 values below one that differ by a rounding, absolute
FEW_ROUNDINGS = 1e-6  # a mean of thousands of float32 values that is summed in parts, relative
SHARED_GRADIENT = 1e-5  # a step shared by several processes against one process, relative
SHARED_TRAINING = 5e-5  # float32 parameters below ten after nine such steps with momentum, absolute
DEVICE_TRAINING = 1e-3  # the same parameters, and objectives per frame, on a GPU against the host, absolute
BFLOAT16_LOSS = 3e-2  # of a small network of three layers against float32: two to three digits, relative
FLOAT32_GRADIENT = 1e-6  # of a transducer's loss by a logit: a few float32 numbers below two, absolute
ELEMENT_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of a number that is stored so, relative
LOG_ADD = 1e-15  # one (+) in float64, relative: a few units in the last place
LOG_ADD_FLOAT32 = 2e-7  # the same in float32
SURE_OCCUPANCY = 1e-6  # of a path whose rivals are exp(-20) or less of it, from float32 scores
SHIFTED_OCCUPANCY = 1e-8  # constants of 1e6 on float64 scores round away 1e-10 of each, over a few frames
OBJF_PER_FRAME_FLOAT64 = 1e-8  # num - den of float64 scores as large as 1e3, per frame
LOSS_TERM = 1e-8  # float64 terms of the loss against their formulas, absolute; terms are up to 1e4
DIFFERENCE = 1e-6  # central differences of float64 occupancies with steps of 1e-4, absolute
GRADIENT_ROW_SUM = 1e-6  # rows of a float32 gradient of the loss, which is divided by the frames, sum to 0
YES_OR_NO = 0.5  # booleans as 0 and 1 must be equal

KALDI_DERIVATIVE = 1e-4
KALDI_DERIVATIVE_HOT = 2e-3  # activations of +-1e3
KALDI_INITIAL_PROBS = 1e-6
KALDI_PHONE_LM = 1e-5
KALDI_WEIGHT = 1e-3  # frames times a float32 weight, absolute
FOUR_DECIMALS = 5e-5  # a value known with four decimals
SIX_DIGITS = 1e-5  # a value printed with six digits, relative
SIX_DECIMALS = 1e-6  # a figure that train.jsonl keeps with six decimals
PRINTED_WEIGHT = 1e-6  # arrays that were printed with nine digits, relative
KALDI_DEN_PATH_TOTAL = 0.25
KALDI_DEN_PATH_SHORT = 0.01  # per frame, T < 20
KALDI_DEN_PATH_LONG = 5e-3  # per frame, T >= 20
KALDI_SUPERVISION_PATH = 0.01  # whole path; each weighted arc is quantised to 1/1024
PEER_COST_RELATIVE = 1e-6
PEER_FSA_GRADIENT = 1e-4
PEER_CLAMP_GRADIENT = 2e-4
PEER_CTC_GRADIENT = 5e-4
PEER_RNNT_GRADIENT = 5e-5  # also of float32 gradients of transducer losses against float64
FAST_RNNT_COST = 2e-5  # absolute

LUMPED_PATH = 1e-9  # merging states of equal futures or proportional pasts is exact but for rounding
GRAPH_COST = 1e-4  # float32 costs of an OpenFst path, added up
ARPA_PROBABILITY = 1e-7  # ARPA text keeps nine decimals
DRAWN_SHARE = 0.05  # six standard deviations of a share of 4000 draws

FBANK = 2e-3  # log mel energies: a float32 FFT against float64, natural log, absolute
NORMALISED_MEAN = 1e-5  # of float32 features, in standard deviations
NORMALISED_VARIANCE = 1e-4
# Two windows at each end of silence are partly in it, and are left out of the statistics of CMVN or come in.
PADDED_STATISTICS = 0.1  # of the largest mean or deviation
PADDED_FEATURES = 0.5  # standard deviations
SPEED_SAMPLES = 1  # the length of a resampled signal is rounded to samples
SPEED_HERTZ = 2.0  # two bins of the spectrum of one second
NOISE_DECIBELS = 0.01  # 8,000 sums of float32, each rounded to 2^-24 of 0.1
SPEED_FRAMES = 1.5  # both lengths are rounded to frames
DURATION_SECONDS = 1e-3  # durations are written with milliseconds at best
RESAMPLED = 1.7e-5  # samples of magnitude one, rounded to steps of 2^-15, against those that are not
LATTICE_POSTERIOR = 2e-5  # of a lattice whose float32 scores reach 30, against float64
NETWORK_FLOAT64 = 1e-10  # an utterance alone against the same in a batch
NETWORK_FLOAT32 = 1e-5
NETWORK_BFLOAT16 = 0.05  # outputs under autocast, a few layers of 8-bit roundings, relative to the largest
TOOLKIT_FLOAT32 = (
    2e-4  # losses of toolkits in float32, and gradients through a small network, of the largest entry
)
ORTHONORMAL = 1e-4  # entries of M M^T after convergence, relative to its diagonal
DELAY_MS = 30.0  # one output frame: how far aligned words may be from where a delay of the audio puts them


def log_prob_tolerance(log_prob):
    """The contract's bound on |d log Z|."""
    return LOG_PROB_RELATIVE * max(LOG_PROB_FLOOR, abs(log_prob))


def drawn_share(probability, draws):
    """Six standard deviations of the share of `draws` that an event takes, and ten draws more for the rare ones."""
    return 6.0 * np.sqrt(probability * (1.0 - probability) / draws) + 10.0 / draws
