# The public names for type checkers: those of the table in __init__.py, which a test compares with these.
__version__: str

from fsachain.backends.cpu.threads import (
    get_num_threads as get_num_threads,
)
from fsachain.backends.cpu.threads import (
    set_num_threads as set_num_threads,
)
from fsachain.backends.dispatch import (
    BestPath as BestPath,
)
from fsachain.backends.dispatch import (
    ForwardBackward as ForwardBackward,
)
from fsachain.backends.dispatch import (
    NBest as NBest,
)
from fsachain.backends.dispatch import (
    SampledPaths as SampledPaths,
)
from fsachain.backends.dispatch import (
    available_backends as available_backends,
)
from fsachain.backends.dispatch import (
    best_path as best_path,
)
from fsachain.backends.dispatch import (
    forward_backward as forward_backward,
)
from fsachain.backends.dispatch import (
    n_best as n_best,
)
from fsachain.backends.dispatch import (
    sample_paths as sample_paths,
)
from fsachain.batch import TableBatch as TableBatch
from fsachain.cli.alignment import Aligner as Aligner
from fsachain.decode.align import (
    Alignment as Alignment,
)
from fsachain.decode.align import (
    Tolerance as Tolerance,
)
from fsachain.decode.forced import (
    TimedToken as TimedToken,
)
from fsachain.decode.forced import (
    TokenSpan as TokenSpan,
)
from fsachain.decode.forced import (
    forced_align as forced_align,
)
from fsachain.decode.forced import (
    merge_tokens as merge_tokens,
)
from fsachain.decode.forced import (
    spans as spans,
)
from fsachain.decode.keyword import (
    OperatingPoint as OperatingPoint,
)
from fsachain.decode.keyword import (
    false_reject_rate as false_reject_rate,
)
from fsachain.decode.keyword import (
    keyword_scores as keyword_scores,
)
from fsachain.denominator import DenominatorGraph as DenominatorGraph
from fsachain.errors import (
    AlignmentError as AlignmentError,
)
from fsachain.errors import (
    BackendUnavailable as BackendUnavailable,
)
from fsachain.errors import (
    ConfigError as ConfigError,
)
from fsachain.errors import (
    DataError as DataError,
)
from fsachain.errors import (
    FsachainError as FsachainError,
)
from fsachain.errors import (
    GraphError as GraphError,
)
from fsachain.errors import (
    MissingExtraError as MissingExtraError,
)
from fsachain.errors import (
    ShapeError as ShapeError,
)
from fsachain.fsa import Fsa as Fsa
from fsachain.graph.algorithms import (
    GraphFacts as GraphFacts,
)
from fsachain.graph.algorithms import (
    determinize as determinize,
)
from fsachain.graph.algorithms import (
    equivalent as equivalent,
)
from fsachain.graph.algorithms import (
    graph_facts as graph_facts,
)
from fsachain.graph.algorithms import (
    minimize as minimize,
)
from fsachain.graph.algorithms import (
    random_paths as random_paths,
)
from fsachain.graph.context import (
    BiphoneCounts as BiphoneCounts,
)
from fsachain.graph.context import (
    ContextTree as ContextTree,
)
from fsachain.graph.ctc import ctc_graph as ctc_graph
from fsachain.graph.decoding import DecodingGraph as DecodingGraph
from fsachain.graph.decoding import build_decoding_graph as build_decoding_graph
from fsachain.graph.denominator import (
    build_denominator as build_denominator,
)
from fsachain.graph.denominator import (
    ctc_denominator as ctc_denominator,
)
from fsachain.graph.forgive import Forgiveness as Forgiveness
from fsachain.graph.forgive import forgive as forgive
from fsachain.graph.grammar import (
    estimate_arpa as estimate_arpa,
)
from fsachain.graph.grammar import (
    grammar_from_arpa as grammar_from_arpa,
)
from fsachain.graph.grammar import (
    ngram_acceptor as ngram_acceptor,
)
from fsachain.graph.grammar import (
    word_loop as word_loop,
)
from fsachain.graph.lexicon import (
    Lexicon as Lexicon,
)
from fsachain.graph.lexicon import (
    lm_phones as lm_phones,
)
from fsachain.graph.numerator import (
    Numerator as Numerator,
)
from fsachain.graph.numerator import (
    build_numerator as build_numerator,
)
from fsachain.graph.open_vocabulary import spelling_model as spelling_model
from fsachain.graph.open_vocabulary import words_and_pieces as words_and_pieces
from fsachain.graph.patterns import (
    OneOf as OneOf,
)
from fsachain.graph.patterns import (
    build_pattern_numerator as build_pattern_numerator,
)
from fsachain.graph.patterns import (
    numerator_of_words as numerator_of_words,
)
from fsachain.graph.patterns import (
    optional as optional,
)
from fsachain.graph.patterns import (
    parse_pattern as parse_pattern,
)
from fsachain.graph.patterns import phone_model_of_words as phone_model_of_words
from fsachain.graph.phone_lm import estimate_phone_lm as estimate_phone_lm
from fsachain.graph.shards import (
    NumeratorMaker as NumeratorMaker,
)
from fsachain.graph.shards import (
    TableShards as TableShards,
)
from fsachain.graph.shards import (
    make_shards as make_shards,
)
from fsachain.graph.spelling import phone_loop as phone_loop
from fsachain.graph.supervision import (
    AlignedPhone as AlignedPhone,
)
from fsachain.graph.supervision import PhoneLattice as PhoneLattice
from fsachain.graph.supervision import (
    Supervision as Supervision,
)
from fsachain.graph.supervision import (
    build_supervision as build_supervision,
)
from fsachain.graph.tied_tree import (
    BiphoneStatistics as BiphoneStatistics,
)
from fsachain.graph.tied_tree import (
    build_tied_tree as build_tied_tree,
)
from fsachain.graph.topology import (
    HmmState as HmmState,
)
from fsachain.graph.topology import (
    Topology as Topology,
)
from fsachain.graph.transducer import product as product
from fsachain.kaldi.lattice import (
    CompactLattice as CompactLattice,
)
from fsachain.kaldi.lattice import (
    Lattice as Lattice,
)
from fsachain.kaldi.lattice import (
    lattice_pdfs as lattice_pdfs,
)
from fsachain.kaldi.lattice import (
    phone_lattice as phone_lattice,
)
from fsachain.kaldi.lattice import (
    read_lattice as read_lattice,
)
from fsachain.loss.base import (
    LFMMIRecord as LFMMIRecord,
)
from fsachain.loss.base import (
    MBRRecord as MBRRecord,
)
from fsachain.loss.chunks import transducer_loss as transducer_loss
from fsachain.loss.ctc import (
    CTCLoss as CTCLoss,
)
from fsachain.loss.ctc import (
    ctc_loss as ctc_loss,
)
from fsachain.loss.grid import mutual_information_recursion as mutual_information_recursion
from fsachain.loss.lfmmi import LFMMILoss as LFMMILoss
from fsachain.loss.mbr import (
    MBRLoss as MBRLoss,
)
from fsachain.loss.mbr import (
    expected_accuracy as expected_accuracy,
)
from fsachain.loss.pruned import (
    do_rnnt_pruning as do_rnnt_pruning,
)
from fsachain.loss.pruned import (
    get_rnnt_prune_ranges as get_rnnt_prune_ranges,
)
from fsachain.loss.pruned import (
    rnnt_loss_pruned as rnnt_loss_pruned,
)
from fsachain.loss.pruned import (
    rnnt_loss_simple as rnnt_loss_simple,
)
from fsachain.loss.pruned import (
    rnnt_loss_smoothed as rnnt_loss_smoothed,
)
from fsachain.loss.rnnt import (
    RNNTLoss as RNNTLoss,
)
from fsachain.loss.rnnt import (
    TransducerAlignment as TransducerAlignment,
)
from fsachain.loss.rnnt import (
    TransducerLattice as TransducerLattice,
)
from fsachain.loss.rnnt import (
    TransducerOccupancy as TransducerOccupancy,
)
from fsachain.loss.rnnt import (
    rnnt_lattice as rnnt_lattice,
)
from fsachain.loss.rnnt import (
    rnnt_loss as rnnt_loss,
)
from fsachain.loss.total import total_log_prob as total_log_prob
from fsachain.loss.variants import (
    hat_lattice as hat_lattice,
)
from fsachain.loss.variants import (
    hat_loss as hat_loss,
)
from fsachain.loss.variants import (
    multi_blank_loss as multi_blank_loss,
)
from fsachain.loss.variants import (
    tdt_lattice as tdt_lattice,
)
from fsachain.loss.variants import (
    tdt_loss as tdt_loss,
)
from fsachain.table import (
    TransitionTable as TransitionTable,
)
from fsachain.table import (
    compile_table as compile_table,
)
