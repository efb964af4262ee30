# The public names for type checkers: those of the table in __init__.py, which a test compares with these.
# ruff: noqa: I001 (isort would have a statement for each name)
__version__: str

from fsachain.backends.cpu.threads import (
    get_num_threads as get_num_threads,
    set_num_threads as set_num_threads,
)
from fsachain.backends.dispatch import (
    BestPath as BestPath,
    ForwardBackward as ForwardBackward,
    NBest as NBest,
    SampledPaths as SampledPaths,
    available_backends as available_backends,
    best_path as best_path,
    forward_backward as forward_backward,
    n_best as n_best,
    sample_paths as sample_paths,
)
from fsachain.batch import TableBatch as TableBatch
from fsachain.asr.cli.alignment import Aligner as Aligner
from fsachain.asr.decode.align import Alignment as Alignment, Tolerance as Tolerance
from fsachain.asr.decode.compare import (
    TierTimes as TierTimes,
    TimeDifference as TimeDifference,
    TimesReport as TimesReport,
    compare_times as compare_times,
)
from fsachain.asr.decode.forced import (
    TimedToken as TimedToken,
    TokenSpan as TokenSpan,
    forced_align as forced_align,
    merge_tokens as merge_tokens,
    spans as spans,
)
from fsachain.asr.decode.keyword import (
    OperatingPoint as OperatingPoint,
    false_reject_rate as false_reject_rate,
    keyword_scores as keyword_scores,
)
from fsachain.denominator import DenominatorGraph as DenominatorGraph
from fsachain.errors import (
    AlignmentError as AlignmentError,
    BackendUnavailable as BackendUnavailable,
    ConfigError as ConfigError,
    DataError as DataError,
    FsachainError as FsachainError,
    GraphError as GraphError,
    MissingExtraError as MissingExtraError,
    ShapeError as ShapeError,
)
from fsachain.fsa import Fsa as Fsa
from fsachain.graph.algorithms import (
    GraphFacts as GraphFacts,
    determinize as determinize,
    equivalent as equivalent,
    graph_facts as graph_facts,
    minimize as minimize,
    random_paths as random_paths,
)
from fsachain.graph.context import BiphoneCounts as BiphoneCounts, ContextTree as ContextTree
from fsachain.graph.ctc import ctc_graph as ctc_graph
from fsachain.graph.decoding import (
    DecodingGraph as DecodingGraph,
    build_decoding_graph as build_decoding_graph,
)
from fsachain.graph.denominator import (
    build_denominator as build_denominator,
    ctc_denominator as ctc_denominator,
    ctc_numerator as ctc_numerator,
)
from fsachain.graph.forgive import Forgiveness as Forgiveness, forgive as forgive
from fsachain.graph.grammar import (
    estimate_arpa as estimate_arpa,
    grammar_from_arpa as grammar_from_arpa,
    ngram_acceptor as ngram_acceptor,
    word_loop as word_loop,
)
from fsachain.graph.lexicon import Lexicon as Lexicon, lm_phones as lm_phones
from fsachain.graph.numerator import Numerator as Numerator, build_numerator as build_numerator
from fsachain.graph.open_vocabulary import (
    spelling_model as spelling_model,
    words_and_pieces as words_and_pieces,
)
from fsachain.graph.patterns import (
    OneOf as OneOf,
    build_pattern_numerator as build_pattern_numerator,
    numerator_of_words as numerator_of_words,
    optional as optional,
    parse_pattern as parse_pattern,
    phone_model_of_words as phone_model_of_words,
)
from fsachain.graph.phone_lm import estimate_phone_lm as estimate_phone_lm
from fsachain.graph.shards import (
    NumeratorMaker as NumeratorMaker,
    TableShards as TableShards,
    make_shards as make_shards,
)
from fsachain.graph.spelling import phone_loop as phone_loop
from fsachain.graph.supervision import (
    AlignedPhone as AlignedPhone,
    PhoneLattice as PhoneLattice,
    Supervision as Supervision,
    build_supervision as build_supervision,
)
from fsachain.graph.tied_tree import (
    BiphoneStatistics as BiphoneStatistics,
    build_tied_tree as build_tied_tree,
)
from fsachain.graph.topology import HmmState as HmmState, Topology as Topology
from fsachain.graph.transducer import product as product
from fsachain.asr.kaldi.lattice import (
    CompactLattice as CompactLattice,
    Lattice as Lattice,
    lattice_pdfs as lattice_pdfs,
    phone_lattice as phone_lattice,
    read_lattice as read_lattice,
)
from fsachain.loss.base import LFMMIRecord as LFMMIRecord, MBRRecord as MBRRecord
from fsachain.loss.chunks import transducer_loss as transducer_loss
from fsachain.loss.ctc import CTCLoss as CTCLoss, ctc_loss as ctc_loss
from fsachain.loss.grid import mutual_information_recursion as mutual_information_recursion
from fsachain.loss.lfmmi import LFMMILoss as LFMMILoss
from fsachain.loss.mbr import MBRLoss as MBRLoss, expected_accuracy as expected_accuracy
from fsachain.loss.pruned import (
    do_rnnt_pruning as do_rnnt_pruning,
    get_rnnt_prune_ranges as get_rnnt_prune_ranges,
    rnnt_loss_pruned as rnnt_loss_pruned,
    rnnt_loss_simple as rnnt_loss_simple,
    rnnt_loss_smoothed as rnnt_loss_smoothed,
)
from fsachain.loss.rnnt import (
    RNNTLoss as RNNTLoss,
    TransducerAlignment as TransducerAlignment,
    TransducerLattice as TransducerLattice,
    TransducerOccupancy as TransducerOccupancy,
    rnnt_lattice as rnnt_lattice,
    rnnt_loss as rnnt_loss,
)
from fsachain.loss.total import total_log_prob as total_log_prob
from fsachain.loss.variants import (
    hat_lattice as hat_lattice,
    hat_loss as hat_loss,
    multi_blank_loss as multi_blank_loss,
    tdt_lattice as tdt_lattice,
    tdt_loss as tdt_loss,
)
from fsachain.table import TransitionTable as TransitionTable, compile_table as compile_table
