"""The commands `fsachain kaldi ...`: files of Kaldi in, files for Kaldi out; printed; and our objective beside its log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from fsachain.asr.cli.config import Experiment
from fsachain.asr.cli.decoding import network_outputs
from fsachain.asr.cli.graphs import Merge, merge_option, write_denominator
from fsachain.asr.cli.lang import Lang, lang_option, write_phone_lm
from fsachain.asr.cli.model import TRAINED, AcousticModel
from fsachain.asr.cli.options import (
    COUNT,
    DATA,
    FILE,
    FOLDER,
    OUT,
    SuggestingGroup,
    command,
    many,
    option,
    track,
)
from fsachain.asr.cli.resources import RESOURCE_OPTIONS, Resources, with_resources
from fsachain.asr.cli.supervision import supervise_by_lattices
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.kaldi_examples import read_examples
from fsachain.asr.decode.ctm import CtmEntry, write_ctm
from fsachain.asr.decode.decoder import decode
from fsachain.asr.decode.wer import write_text
from fsachain.asr.kaldi import values
from fsachain.asr.kaldi.archive import read_any, read_table, read_value
from fsachain.asr.kaldi.examples import ChainExample, read_example, read_objective
from fsachain.asr.kaldi.lattice import CompactLattice, read_lattice
from fsachain.asr.kaldi.model import (
    pdf_graph,
    read_context_tree,
    read_topology,
    read_transition_model,
    read_tree,
)
from fsachain.backends.dispatch import forward_backward
from fsachain.denominator import DenominatorGraph
from fsachain.errors import ConfigError, DataError, counted
from fsachain.fsa import Fsa
from fsachain.graph.lexicon import Lexicon, read_phones
from fsachain.graph.phone_lm import estimate_phone_lm
from fsachain.graph.supervision import Chunk, save_chunks
from fsachain.openfst import Transducer, read_fst, read_symbols, rows
from fsachain.progress import counter
from fsachain.stream import Cursor

MODELS = ("0.trans_mdl", "final.mdl")
DIFFERENT = 1  # exit status of `objf`
CLAMP = 30.0  # Kaldi's denominator takes scores within +-30
PRINTED = 1e-5  # relative: logs have six digits
IMPOSSIBLE_OBJF = -10.0  # what Kaldi counts per frame where a numerator has no path

Lines = Iterable[str]


@click.group(cls=SuggestingGroup)
def kaldi() -> None:
    """Work with the files of a Kaldi chain recipe; docs/kaldi.md is the guide."""


command(kaldi, "supervise", data=DATA, model=FILE, out=OUT, lattices=many(str))(supervise_by_lattices)


@command(kaldi, "lang", lexicon=FILE, model_dir=FOLDER, out=OUT)
def import_lang(
    lexicon: Path,
    model_dir: Path,
    out: Path,
    silence: str = option(str, "Phone that may stand between words.", default="SIL"),
    silence_prob: float = option(float, "Probability of silence at each such place.", default=0.5),
    oov: str | None = option(str, "Word that stands for all that the lexicon lacks."),
    config: Path | None = option(FILE, "YAML file of the experiment, for the commands that read OUT."),
) -> Lang:
    """Take over phones, tree and topology of a Kaldi model.

    In: LEXICON, lexicon.txt or lexiconp.txt, and MODEL_DIR with tree, 0.trans_mdl or final.mdl, and phones.txt.
    Out: language folder OUT, for all other commands.
    Example: fsachain kaldi lang dict/lexiconp.txt exp/chain lang
    """
    models = [model_dir / name for name in MODELS if (model_dir / name).is_file()]
    for name in ("tree", "phones.txt"):
        if not (model_dir / name).is_file():
            raise DataError(f"{model_dir}: no {name}; expected tree, phones.txt and {' or '.join(MODELS)}")
    if not models:
        raise DataError(f"{model_dir}: no {' or '.join(MODELS)}")
    phones = read_phones(model_dir / "phones.txt")
    words = Lexicon.read(lexicon, silence=silence, silence_prob=silence_prob, oov=oov, phones=phones)
    experiment = None if config is None else Experiment.read(config)
    lang = Lang(words, read_context_tree(model_dir / "tree", models[0], phones), experiment)
    lang.save(out)
    return lang


@command(kaldi, "den", den=FILE, out=OUT)
def import_den(den: Path, out: Path, lang: Lang = lang_option, merge: Merge = merge_option) -> str:
    """Take over a denominator graph.

    In: DEN, den.fst of a Kaldi model.
    Out: folder OUT with den.fst and normalization.fst, as `fsachain den-graph` makes it.
    Example: fsachain kaldi den exp/chain/den.fst graphs --lang lang
    """
    # The normalization is computed, not read.
    return write_denominator(lang, Fsa.read(den), out, merge)


@command(kaldi, "phone-lm", phones=str, out=OUT)
def phone_lm(
    phones: str,
    out: Path,
    ngram_order: int = option(
        click.IntRange(min=2), "Phones of an n-gram, the predicted one included.", default=4
    ),
    num_extra_lm_states: int = option(
        click.IntRange(min=0), "States kept above those of the order that is never pruned.", default=1000
    ),
    no_prune_ngram_order: int = option(COUNT, "N-grams up to this order are never pruned.", default=3),
) -> str:
    """Estimate a phone language model as chain-est-phone-lm does, arc for arc.

    In: PHONES, an archive of phone ids by utterance, such as ali-to-phones writes.
    Out: OUT, phone_lm.fst, for `fsachain den-graph`.
    Example: fsachain kaldi phone-lm ark:phones.ark phone_lm.fst
    """
    sequences = [ids.tolist() for _, ids in read_table(phones, values.read_alignment)]
    if not sequences:
        raise DataError(f"{phones}: no sequence of phones")
    with counter("phone language model"):
        fsa = estimate_phone_lm(sequences, ngram_order, num_extra_lm_states, no_prune_ngram_order)
    return write_phone_lm(out, fsa, ())


@command(kaldi, None, model=FILE, phones=FILE, out=OUT, alignments=many(str))
def ctm(
    model: Path,
    phones: Path,
    out: Path,
    alignments: tuple[str, ...],
    frame_shift: float = option(
        float,
        "Seconds for each frame of the alignments: 0.03 for chain models that see one frame in three.",
        default=0.01,
    ),
) -> str:
    """Write the phones of alignments with their times.

    In: MODEL, the 0.trans_mdl or final.mdl of the alignments; PHONES, its phones.txt; ALIGNMENTS, ali.*.gz.
    Out: OUT, a CTM file, which `fsachain supervise` and `fsachain tie-tree` take.
    Example: fsachain kaldi ctm exp/tri3/final.mdl exp/tri3/phones.txt phones.ctm exp/tri3/ali.1.gz
    """
    if not 0 < frame_shift < float("inf"):
        raise ConfigError(f"frame_shift = {frame_shift}: expected seconds above 0")
    transitions, names = read_transition_model(model), read_phones(phones)
    if transitions.num_phones != len(names):
        raise DataError(
            f"{model} has {counted(transitions.num_phones, 'phone')}; expected {len(names)}, as in {phones}"
        )
    entries: list[CtmEntry] = []
    seen: set[str] = set()
    for table in alignments:
        for name, alignment in read_table(table, values.read_alignment):
            if name in seen:
                raise DataError(f"{table}: the alignment of {name!r} is in another table too")
            seen.add(name)
            try:
                spans = transitions.phones(alignment)
            except DataError as error:
                raise DataError(f"{table}: utterance {name!r}: {error}") from error
            entries += [
                CtmEntry(name, frame_shift * first, frame_shift * (end - first), names[phone - 1])
                for phone, first, end in spans
            ]
    write_ctm(out, entries)
    return counted(len(seen), "utterance")


@command(kaldi, None, out=OUT, examples=many(str))
def egs(out: Path, examples: tuple[str, ...]) -> str:
    """Take over chain examples, end-to-end or made from alignments, merged or not.

    In: EXAMPLES, cegs.*.ark.
    Out: folder OUT with data, a data directory of features, and chunks.npz: what `fsachain train` takes as data and
    numerators, with `features: {kind: archive, num_columns: ...}` in its configuration.
    Example: fsachain kaldi egs examples cegs.1.ark cegs.2.ark
    """
    features: dict[str, np.ndarray] = {}
    chunks: dict[str, list[list[Chunk]]] = {}
    kinds: set[tuple[int, int, int]] = set()
    speakers = 0
    for table in examples:
        for found in read_examples(table):
            name, matrix, window = found.example.id, found.example.features, found.example.window
            if name in features:
                raise DataError(f"{table}: the example {name!r} is in another table too")
            kinds.add((matrix.shape[1], found.num_pdfs, found.subsampling))
            if len(kinds) > 1:
                raise DataError(
                    f"{table}: example {name!r}: examples have (features, pdfs, subsampling) of {sorted(kinds)}; expected "
                    "one kind"
                )
            assert window is not None
            # The graphs that Kaldi made, normalization included; weights of examples become factors on derivatives.
            chunk = Chunk(
                name,
                window.first,
                window.first + window.length,
                -(-found.example.num_frames // found.subsampling),
                found.numerator,
                np.float32(found.weight) * window.frame_weights,
            )
            features[name], chunks[name] = matrix, [[chunk]]
            speakers += found.speaker_vector is not None
    if not features:
        raise DataError(f"{', '.join(examples)}: no example")
    data = (out / "data").resolve()
    values.write_matrices(data / "feats.ark", features)
    write_text(data / "text", dict.fromkeys(features, ()))
    save_chunks(out / "chunks.npz", chunks)
    width, num_pdfs, subsampling = kinds.pop()
    left_out = f"; {counted(speakers, 'speaker vector')} left out, our networks take none" if speakers else ""
    return (
        f"{counted(len(features), 'example')} of {counted(width, 'feature')} and "
        f"{counted(num_pdfs, 'pdf')}, an output for every "
        f"{counted(subsampling, 'frame')}{left_out}"
    )


@command(kaldi, None, model=TRAINED, data=DATA, out=OUT)
def outputs(
    model: AcousticModel,
    data: DataDir,
    out: Path,
    resources: Resources = with_resources("cache", "workers", "bad_data", "commands", beside=True),
) -> str:
    """Write network outputs for Kaldi's own decoders, such as latgen-faster-mapped.

    In: MODEL, made by `fsachain train`, and DATA, a Kaldi data directory.
    Out: OUT, a matrix archive (.ark), and an scp file beside it.
    Example: fsachain kaldi outputs model/model.safetensors test nnet_output.ark
    """
    _, found = network_outputs(model, data, resources)
    return counted(values.write_matrices(out, found), "utterance")


@command(kaldi, "decode", matrices=str, hclg=FILE, model=FILE, words=FILE, out=OUT)
def decode_archive(
    matrices: str,
    hclg: Path,
    model: Path,
    words: Path,
    out: Path,
    acoustic_scale: float = option(float, "Factor on the outputs; 1.0 for chain models.", default=1.0),
    jobs: int = RESOURCE_OPTIONS["jobs"],
) -> str:
    """Decode network outputs with a graph of Kaldi.

    In: MATRICES, an archive or scp file of network outputs; HCLG, HCLG.fst; MODEL, the 0.trans_mdl or final.mdl it was
    made with; WORDS, words.txt.
    Out: folder OUT with hyp.txt.
    Example: fsachain kaldi decode nnet_output.ark graph/HCLG.fst exp/chain/final.mdl graph/words.txt decoded
    """
    transitions = read_transition_model(model)
    graph = pdf_graph(read_value(hclg, read_fst), transitions).to_openfst()
    scores = {}
    for name, matrix in read_table(matrices, values.read_matrix):
        if matrix.shape[1] != transitions.num_pdfs:
            raise DataError(
                f"{matrices}: outputs of {name!r} have {counted(matrix.shape[1], 'column')}; {model} has "
                f"{counted(transitions.num_pdfs, 'pdf')}"
            )
        scores[name] = acoustic_scale * matrix
    with counter("decoding") as update:
        found = decode(scores, graph, read_symbols(words), num_workers=jobs, progress=update)
    write_text(out / "hyp.txt", {name: result.words for name, result in found.items()})
    return counted(len(found), "utterance")


# Text as copy-feats, copy-int-vector, copy-post, fstcopy and show-transitions print it with `ark,t:-`.


def _number(value: float) -> str:
    return f"{value:.7g}"


def _matrix(key: str, matrix: values.Floats) -> Lines:
    lines = ["  " + " ".join(map(_number, row)) for row in matrix.tolist()]
    return [f"{key}  [", *lines[:-1], f"{lines[-1] if lines else ''} ]"]


def _posterior(key: str, posterior: list[list[tuple[int, float]]]) -> Lines:
    frames = ("".join(f"{label} {_number(weight)} " for label, weight in frame) for frame in posterior)
    return [f"{key} {' '.join(f'[ {frame}]' for frame in frames)}"]


def _fst_lines(fst: Transducer) -> Lines:
    """AT&T text, the start state's lines first, with costs."""
    arcs: list[list[str]] = [[] for _ in range(fst.num_states)]
    for *fields, log_prob in rows(fst.src, fst.dst, fst.ilabel, fst.olabel, fst.log_prob):
        arcs[fields[0]].append("\t".join([*map(str, fields), _number(0.0 - log_prob)]))
    for state in [fst.start, *(state for state in range(fst.num_states) if state != fst.start)]:
        yield from arcs[state]
        if fst.final_log_prob[state] > -math.inf:
            yield f"{state}\t{_number(0.0 - fst.final_log_prob[state])}"


def _lattice(key: str, compact: CompactLattice) -> Lines:
    yield key
    found = compact.expanded()
    labels = (found.src, found.dst, found.transition, found.word)
    for *fields, graph, acoustic in rows(*labels, found.graph_cost, found.acoustic_cost):
        yield "\t".join([*map(str, fields), f"{_number(graph)},{_number(acoustic)}"])
    for state in np.flatnonzero(found.final_graph_cost < math.inf).tolist():
        yield f"{state}\t{_number(found.final_graph_cost[state])},{_number(found.final_acoustic_cost[state])}"
    yield ""


def _example(key: str, example: ChainExample) -> Lines:
    for part in example.inputs:
        rows, columns = part.features.shape
        times = part.indexes.t
        yield f"{key} input {part.name}: {counted(rows, 'row')} of {columns}, times {times.min()} to {times.max()}"
    for output in example.outputs:
        arcs = sum(fsa.num_arcs for fsa in output.fsas)
        kind = "end-to-end" if output.end_to_end else "from alignments"
        yield (
            f"{key} output {output.name}: {counted(output.num_sequences, 'sequence')} of "
            f"{counted(output.frames_per_sequence, 'frame')}, {counted(output.label_dim, 'pdf')}, "
            f"weight {_number(output.weight)}, {kind}, {counted(len(output.fsas), 'graph')}, {counted(arcs, 'arc')}"
        )


def _model(path: str) -> Lines:
    model = read_transition_model(path)
    table = model.transitions
    sizes = counted(model.num_phones, "phone"), counted(model.num_pdfs, "pdf")
    yield f"{', '.join(sizes)}, {counted(len(table.pdf) - 1, 'transition id')}"
    yield "transition\tphone\tstate\tpdf\tself-loop\tlast\tlog-prob"
    for number in range(1, len(table.pdf)):
        marks = ("yes" if mark[number] else "no" for mark in (table.is_self_loop, table.is_final))
        fields = [number, table.phone[number], table.hmm_state[number], table.pdf[number], *marks]
        yield "\t".join([*map(str, fields), _number(model.log_probs[number])])


def _topology(path: str) -> Lines:
    for phone, states in sorted(read_topology(path).items()):
        for number, state in enumerate(states[:-1]):
            ways = ", ".join(f"{target} ({_number(prob)})" for target, prob in state.transitions)
            classes = f"pdf classes {state.forward_class} and {state.self_loop_class}"
            yield f"phone {phone}, state {number}: {classes}, to {ways}"


def _tree(path: str) -> Lines:
    tree = read_tree(path)
    yield f"context-width {tree.context_width}"
    yield f"central-position {tree.central_position}"
    yield f"num-pdfs {tree.decisions.num_pdfs}"


_TABLES: dict[str, tuple[Callable[[Cursor], Any], Callable[[str, Any], Lines]]] = {
    "matrix": (values.read_matrix, _matrix),
    "vector": (
        values.read_vector,
        lambda key, found: [f"{key}  [ {' '.join(map(_number, found.tolist()))} ]"],
    ),
    "alignment": (values.read_alignment, lambda key, found: [f"{key} {' '.join(map(str, found.tolist()))}"]),
    "posterior": (values.read_posterior, _posterior),
    "fst": (read_fst, lambda key, fst: [key, *_fst_lines(fst), ""]),
    "lattice": (read_lattice, _lattice),
    "example": (read_example, _example),
}
_FILES: dict[str, Callable[[str], Lines]] = {
    "fst-file": lambda path: _fst_lines(read_value(Path(path), read_fst)),
    "model": _model,
    "topo": _topology,
    "tree": _tree,
}


@command(kaldi, None, kind=click.Choice([*_TABLES, *_FILES]), source=str)
def show(kind: str, source: str) -> None:
    """Print a file of Kaldi as text.

    In: KIND and SOURCE: an archive or scp file of matrices, vectors, alignments, posteriors, FSTs, lattices or chain
    examples, or the file or address (feats.ark:17) of one; or one FST, transition model, topo or tree. The lattices are
    those of lat.*.gz, the model 0.trans_mdl or final.mdl.
    Out: text, printed: archives as Kaldi's ark,t:- does, FSTs in AT&T form, of examples a line for each input and output.
    Example: fsachain kaldi show matrix nnet_output.ark
    """
    if kind in _FILES:
        texts: Iterable[Lines] = [_FILES[kind](source)]
    else:
        read, write = _TABLES[kind]
        texts = (_shown(key, write(key, value)) for key, value in read_any(source, read))
    for text in texts:
        for line in text:
            click.echo(line)


def _shown(key: str, text: Lines) -> Lines:
    """The lines of a value; of one without a key no line that only a key would stand on."""
    return text if key else filter(None, text)


@command(kaldi, None, examples=str, matrices=str, den=FILE)
@click.pass_context
def objf(
    context: click.Context,
    examples: str,
    matrices: str,
    den: Path,
    leaky_hmm_coefficient: float = option(float, "Leak of the denominator, as in training.", default=0.1),
    l2_regularize: float = option(float, "Penalty on squared outputs, as in training.", default=0.0),
    log: Path | None = option(FILE, "Log of nnet3-chain-compute-prob for these examples."),
    output_name: str = option(str, "The network's output in the log.", default="output"),
    tolerance: float = option(float, "Largest difference per frame.", default=1e-4),
) -> None:
    """Compute the objective of chain examples, and compare it with a Kaldi log.

    In: EXAMPLES, cegs.*.ark or valid_diagnostic.cegs of an end-to-end recipe; MATRICES, the network's outputs for them;
    DEN, den.fst; --log compute_prob_valid.final.log, which Kaldi wrote for the same examples and network.
    Out: a line for each example and one for all, printed; with --log a table of ours and Kaldi's, counted as Kaldi does
    (docs/kaldi.md says how that differs). Exit status 1 if they differ by more than the tolerance.
    Example: fsachain kaldi objf ark:cegs.1.ark ark:nnet_output.ark exp/chain/den.fst
    """
    theirs = None if log is None else read_objective(log, output_name)
    scores, graph = dict(read_table(matrices, values.read_matrix)), None
    total, frames, all_frames, kaldi_total, squares, impossible = 0.0, 0.0, 0.0, 0.0, 0.0, 0
    every = list(read_examples(examples))
    for example in track(every, "examples"):
        name, window, weight = example.example.id, example.example.window, example.weight
        if name not in scores:
            raise DataError(f"{matrices}: no outputs for the example {name!r}")
        matrix = scores[name]
        assert window is not None
        expected = (window.length, example.num_pdfs)
        if matrix.shape != expected:
            raise DataError(
                f"{matrices}: outputs of {name!r} are {list(matrix.shape)}; expected {list(expected)}"
            )
        if graph is None:
            graph = DenominatorGraph(Fsa.read(den), example.num_pdfs)
            click.echo("example\tframes\tweight\tnumerator\tdenominator\tobjf per frame\t")
        num = forward_backward([example.numerator], matrix[None])
        pair = np.stack([matrix, matrix.clip(-CLAMP, CLAMP)])
        both = forward_backward(graph.batch(2), pair, leaky_hmm_coefficient=leaky_hmm_coefficient)
        above, below, clamped = map(float, (num.log_prob[0], *both.log_prob))
        ok = bool(num.ok[0] and both.ok.all())
        numbers = (len(matrix), weight, above, below, (above - below) / len(matrix))
        shown = "\t".join(f"{value:.6g}" for value in numbers)
        click.echo(f"{name}\t{shown}\t{'ok' if ok else 'impossible'}")
        weighted = weight * len(matrix)
        all_frames += weighted
        if not ok:
            impossible += 1
            kaldi_total += IMPOSSIBLE_OBJF * weighted
            continue
        frames += weighted
        total += weight * (above - below)
        kaldi_total += above - weight * clamped  # Kaldi does not weight the numerator of end-to-end examples
        squares += weight * float(np.square(matrix, dtype=np.float64).sum())
    if not all_frames:
        raise DataError(f"{counted(len(every), 'example')}: expected some with a weight above 0")
    if frames:
        click.echo(f"all: objf per frame {total / frames:.6g} over {counted(frames, 'weighted frame', 'g')}")
    else:
        click.echo("all: none")
    if theirs is None:
        return
    # As Kaldi counts: the l2 term sums over the possible examples and is divided by the frames of all.
    rows = [
        ("objf per frame", kaldi_total / all_frames, theirs.objf, tolerance),
        ("l2 term per frame", -0.5 * l2_regularize * squares / all_frames, theirs.l2_term, tolerance),
        ("weighted frames", all_frames, theirs.weight, PRINTED * all_frames),
    ]
    click.echo(f"{'':20}{'ours':>14}{'Kaldi':>14}{'difference':>12}{'allowed':>10}")
    for what, ours, other, allowed in rows:
        click.echo(f"{what:20}{ours:14.6g}{other:14.6g}{ours - other:12.1e}{allowed:10.0e}")
    if impossible:
        click.echo(
            f"{impossible} impossible: counted with {IMPOSSIBLE_OBJF:g} per frame each; Kaldi counts all "
            "sequences of their minibatches so"
        )
    equal = all(abs(ours - other) <= allowed for _, ours, other, allowed in rows)
    click.echo("equal" if equal else "different")
    context.exit(0 if equal else DIFFERENT)
