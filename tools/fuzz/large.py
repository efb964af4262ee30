"""Large sound files for every reader, to measure memory on; deterministic, with the words and numbers of real ones."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from fsachain.cli.config import Experiment
from fsachain.cli.model import AcousticModel
from fsachain.data.cmvn import Cmvn
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk, save_chunks
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import Numerator, save_numerators
from fsachain.graph.topology import Topology
from fsachain.nn.tdnnf import Tdnnf
from fsachain.table import compile_table
from fsachain.table_file import write_tables
from fsachain.train.checkpoint import Checkpoint
from fsachain.train.config import MAX_BYTES
from tools.fuzz.kaldi_readers import OBJECTIVE

Writer = Callable[[Path, int], None]
RATE = 8000
_PHONES = [f"{letter}{number}" for letter in "AEIKMNSTUZ" for number in range(4)]
_PHONES_PER_WORD = 6
_WORDS_PER_LINE = 12
_ARC_BYTES = 28  # of an acceptor: three int32 and a float64 for an arc, and a third of a state
_GRAPH_ARCS = 60  # of a numerator of two seconds


def _words(count: int) -> list[str]:
    """Made-up words of three to eleven letters."""
    generator = np.random.default_rng(1)
    lengths = generator.integers(3, 12, count)
    letters = "".join(chr(97 + letter) for letter in generator.integers(0, 26, int(lengths.sum())))
    ends = np.cumsum(lengths)
    return [letters[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _lines(path: Path, size: int, line: Callable[[int], str]) -> None:
    """Lines line(0), line(1), ... until the file has `size` bytes."""
    written, number = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            written += file.write(line(number))
            number += 1


def _transcripts(path: Path, size: int) -> None:
    vocabulary = _words(5000)
    generator = np.random.default_rng(2)

    def line(number: int) -> str:
        said = " ".join(vocabulary[word] for word in generator.integers(0, 5000, _WORDS_PER_LINE))
        return f"speaker{number % 50:03d}-utterance{number:07d} {said}\n"

    _lines(path, size, line)


def _ctm(path: Path, size: int) -> None:
    vocabulary = _words(5000)
    _lines(
        path,
        size,
        lambda number: f"utterance{number // 20:07d} 1 {number % 20}.25 0.30 {vocabulary[number % 5000]}\n",
    )


def _log(path: Path, size: int) -> None:
    event = {"event": "batch", "time": 1700000000.123, "objf": -0.123456, "weight": 1234.0, "batch": 12}
    _lines(path, size, lambda number: json.dumps({**event, "step": number}) + "\n")


def _lexicon(path: Path, size: int) -> None:
    generator = np.random.default_rng(3)
    words = iter(_words(size // 20))

    def line(number: int) -> str:
        spoken = " ".join(_PHONES[phone] for phone in generator.integers(0, len(_PHONES), _PHONES_PER_WORD))
        return f"{next(words)}{number} {spoken}\n"

    _lines(path, size, line)


def _lexicon_json(path: Path, size: int) -> None:
    text = path.with_suffix(".txt")
    _lexicon(text, size)
    Lexicon.read(text, silence=None).save(path)


def _tree(path: Path, size: int) -> None:
    """Untied biphones of as many phones as the file has room for."""
    phones = tuple(f"{name}{number}" for number in range(max(1, size // 4000)) for name in _PHONES)
    ContextTree.biphone(phones, Topology.chain()).save(path)


def _symbols(path: Path, size: int) -> None:
    words = _words(size // 10)
    _lines(path, size, lambda number: f"{words[number]}{number} {number}\n" if number else "<eps> 0\n")


def data_folder(folder: Path, size: int) -> int:
    """A Kaldi data directory whose tables have about `size` bytes together; returns how many."""
    vocabulary = _words(5000)
    generator = np.random.default_rng(11)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"speaker{number % 50:03d}-utterance{number:07d}" for number in range(size // 200)]
    said = generator.integers(0, 5000, (len(names), _WORDS_PER_LINE)).tolist()
    lines = {
        "text": [
            " ".join((name, *(vocabulary[n] for n in row))) for name, row in zip(names, said, strict=True)
        ],
        "wav.scp": [f"{name} audio/{name[:10]}/{name}.flac" for name in names],
        "utt2spk": [f"{name} {name[:10]}" for name in names],
    }
    return sum((folder / table).write_text("\n".join(rows) + "\n") for table, rows in lines.items())


def _cuts(path: Path, size: int) -> None:
    vocabulary = _words(5000)
    generator = np.random.default_rng(13)

    def line(number: int) -> str:
        said = " ".join(vocabulary[word] for word in generator.integers(0, 5000, _WORDS_PER_LINE))
        source = {"type": "file", "channels": [0], "source": f"audio/recording{number // 100:05d}.flac"}
        recording = {"id": f"r{number // 100}", "sources": [source], "sampling_rate": 16000}
        recording |= {"num_samples": 16000 * 600, "duration": 600.0, "channel_ids": [0]}
        times = {"start": 5.12 * (number % 100), "duration": 5.12, "channel": 0}
        supervision = {"id": f"s{number}", "recording_id": recording["id"], "text": said, **times}
        supervision["speaker"] = f"speaker{number % 50:03d}"
        cut = {"id": f"speaker{number % 50:03d}-utterance{number:07d}", **times, "type": "MonoCut"}
        return json.dumps({**cut, "supervisions": [supervision], "recording": recording}) + "\n"

    _lines(path, size, line)


def _shard(path: Path, size: int) -> None:
    """Recordings of an eighth of a second, of which the manifest beside it names one."""
    import soundfile

    recording = io.BytesIO()
    soundfile.write(recording, np.zeros(1000, np.int16), RATE, format="WAV")
    content = recording.getvalue()
    with tarfile.open(path, "w") as tar:
        for number in range(max(1, size // (len(content) + 1000))):
            member = tarfile.TarInfo(f"u{number}.wav")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def _matrix_text(path: Path, size: int) -> None:
    rows = [" ".join(f"{value:.4f}" for value in row) for row in np.random.default_rng(12).random((50, 40))]
    text = "\n  ".join(["[", *rows]) + " ]\n"
    _lines(path, size, lambda number: f"utterance{number:07d}  {text}")


def _fst_archive(path: Path, size: int) -> None:
    text = _fsa(300).to_text()
    _lines(path, size, lambda number: f"utterance{number:07d}\n{text}\n")


def _fsa(arcs: int, seed: int = 6) -> Fsa:
    """A chain of `arcs` / 3 states with loops and skips."""
    generator = np.random.default_rng(seed)
    states = max(2, arcs // 3)
    src = np.repeat(np.arange(states - 1), 3)
    dst = np.minimum(src + np.tile([0, 1, 2], states - 1), states - 1)
    final = np.full(states, -np.inf)
    final[-1] = 0.0
    return Fsa(states, src, dst, generator.integers(0, 40, len(src)), -generator.random(len(src)), final)


def _tables(path: Path, size: int) -> None:
    table = compile_table(_fsa(_GRAPH_ARCS), 40)
    one = 110 * _GRAPH_ARCS
    write_tables(path, ((f"utterance{n:07d}", table) for n in range(max(1, size // one))), {"of": "nothing"})


def _numerators(path: Path, size: int) -> None:
    fsa = _fsa(_GRAPH_ARCS)
    words, labels = tuple(_words(_WORDS_PER_LINE)), np.zeros(fsa.num_arcs, np.int32)
    one = Numerator(fsa, words, labels, labels, labels.astype(np.bool_))
    count = size // (30 * _GRAPH_ARCS)
    save_numerators(path, {f"utterance{n:07d}": one for n in range(max(1, count))})


def _chunks(path: Path, size: int) -> None:
    frames = 50
    chunk = Chunk("u1", 0, frames, frames, _fsa(_GRAPH_ARCS), np.ones(frames, np.float32))
    count = size // (30 * _GRAPH_ARCS)
    save_chunks(path, {f"utterance{n:07d}": [[chunk]] for n in range(max(1, count))})


def _table(path: Path, size: int) -> None:
    compile_table(_fsa(size // 110), 40).save(path)


def _arrays(path: Path, size: int) -> None:
    generator = np.random.default_rng(7)
    np.savez(path, **{name: generator.random(size // 32) for name in "abcd"})


def _checkpoint(path: Path, size: int) -> None:
    side = int((size / 12) ** 0.5) + 1
    model = torch.nn.Linear(side, side)
    moments = {"exp_avg": torch.zeros(side, side), "exp_avg_sq": torch.ones(side, side)}
    one = Checkpoint(1, 0, 4, model.state_dict(), {"param_groups": [], "state": {0: moments}}, {}, {"a": [1]})
    one.save(path.parent).replace(path)


def _weights(path: Path, size: int) -> None:
    from safetensors.torch import save_file

    save_file({f"layer{number}": torch.ones(size // 40) for number in range(10)}, str(path))


def _model(path: Path, size: int) -> None:
    channels = max(8, int((size / 30) ** 0.5))
    sizes = {"channels": channels, "bottleneck": channels // 2, "prefinal": channels, "time_strides": [1, 1]}
    experiment = Experiment.from_dict({"cmvn": {"scope": "none"}, "network": sizes})
    AcousticModel(experiment, Tdnnf(experiment.network_config(channels)), Cmvn(experiment.cmvn)).save(path)


def _audio(path: Path, size: int) -> None:
    import soundfile

    noise = np.random.default_rng(8).integers(-20000, 20000, size // 2).astype(np.int16)
    soundfile.write(path, noise, RATE, format=path.suffix[1:].upper(), subtype="PCM_16")


def _options(path: Path, size: int) -> None:
    """At most as long as options may be; comments, for there are not that many options."""
    head = "train: {num_epochs: 3, seed: 1}\n"
    path.write_text(head + "# why it is so\n" * ((min(size, MAX_BYTES) - len(head)) // 15), encoding="utf-8")


def _fst_text(path: Path, size: int) -> None:
    path.write_text(_fsa(size // 22).to_text(), encoding="utf-8")


def _matrices(path: Path, size: int) -> None:
    rows, columns = 200, 40
    values = np.random.default_rng(9).random((rows, columns)).astype("<f4").tobytes()
    head = b"\0BFM \x04" + rows.to_bytes(4, "little") + b"\x04" + columns.to_bytes(4, "little")
    with path.open("wb") as file:
        for number in range(max(1, size // len(values))):
            file.write(f"utterance{number:07d} ".encode() + head + values)


def _one_matrix(path: Path, size: int) -> None:
    values = np.random.default_rng(16).random((size // 160, 40), np.float32)
    head = b"u1 \0BFM \x04" + len(values).to_bytes(4, "little") + b"\x04" + (40).to_bytes(4, "little")
    path.write_bytes(head + values.tobytes())


def _alignments(path: Path, size: int) -> None:
    ids = " ".join(map(str, np.random.default_rng(10).integers(1, 3000, 400).tolist()))
    _lines(path, size, lambda number: f"utterance{number:07d} {ids}\n")


def _posteriors(path: Path, size: int) -> None:
    _lines(path, size, lambda number: f"utterance{number:07d} " + "[ 31 0.5 1207 0.5 ] " * 200 + "\n")


def _kaldi_tree(path: Path, size: int) -> None:
    """A table of phones over splits, as build-tree makes them, in text form."""
    generator, leaves, roots = np.random.default_rng(14), iter(range(size)), max(1, size // 9_000)

    def grow(count: int) -> str:
        if count == 1:
            return f"CE {next(leaves)} "
        values = " ".join(map(str, np.unique(generator.integers(0, 200, 20)).tolist()))
        sides = f"{grow(count // 2)}{grow(count - count // 2)}"
        return f"SE {generator.choice([0, 2, -1])} [ {values} ]\n{{ {sides}}} \n"

    text = "".join(grow(100) for _ in range(roots))
    path.write_text(f"ContextDependency 3 1 ToPdf TE 1 {roots} ( {text}) EndContextDependency ")


def _topology_entry(phones: range) -> str:
    state = (
        "<State> 0 <ForwardPdfClass> 0 <SelfLoopPdfClass> 1 <Transition> 0 0.5 <Transition> 1 0.5 </State>"
    )
    ids = " ".join(map(str, phones))
    return f"<TopologyEntry> <ForPhones> {ids} </ForPhones> {state} <State> 1 </State> </TopologyEntry>\n"


def _topology(path: Path, size: int) -> None:
    entries = "".join(_topology_entry(range(phone, phone + 1)) for phone in range(1, size // 180))
    path.write_text(f"<Topology> {entries}</Topology> ")


def _transition_model(path: Path, size: int) -> None:
    count, phones = size // 40, 300
    tuples = "".join(f"{1 + phones * n // count} 0 {2 * n} {2 * n + 1}\n" for n in range(count))
    log_probs = "0 " + "-0.6931472 " * (2 * count)
    topology = f"<Topology> {_topology_entry(range(1, phones + 1))}</Topology> "
    tail = f"<LogProbs> [ {log_probs}]\n</LogProbs> </TransitionModel> "
    path.write_text(f"<TransitionModel> {topology}<Tuples> {count}\n{tuples}</Tuples> {tail}")


def _examples(path: Path, size: int) -> None:
    """Of 150 frames of 40 features, and 50 with the graph of an utterance of two seconds."""
    generator = np.random.default_rng(15)
    rows = "\n".join(" ".join(f"{value:.4f}" for value in row) for row in generator.random((150, 40)))
    inputs, outputs = ("".join(f"<I1> 0 {t} 0 " for t in range(n)) for n in (150, 50))
    text = (
        f"<Nnet3ChainEg> <NumInputs> 1 <NnetIo> input <I1V> 150 {inputs} [\n{rows} ]\n</NnetIo> <NumOutputs> 1 "
        f"<NnetChainSup> output <I1V> 50 {outputs}<Supervision> <Weight> 1 <NumSequences> 1 <FramesPerSeq> 50 "
        f"<LabelDim> 40 <End2End> T <Fsts>\n{_fsa(_GRAPH_ARCS).to_text()}\n</Fsts> </Supervision> "
        f"<DW2>  [ {'1 ' * 50}]\n</NnetChainSup>\n</Nnet3ChainEg>\n"
    )
    _lines(path, size, lambda number: f"utterance{number:07d} {text}")


def _training_log(path: Path, size: int) -> None:
    said = OBJECTIVE.decode()
    _lines(path, size, lambda number: f"iteration {number}\n" if number else said)


def _lattice_lines(states: int) -> Iterator[str]:
    for state in range(states):
        yield f"{state} {state + 1} {state % 3000} 2.34375,-12.5625,17_17_18_18_18\n"
        yield f"{state} {state + 1} {state % 2999} 3.34375,-11.5625,17_19_18_18_18\n"
    yield f"{states} 0,0,\n"


def _lattices(path: Path, size: int) -> None:
    text = "".join(_lattice_lines(400))
    with path.open("w", encoding="utf-8") as file:
        for number in range(max(1, size // len(text))):
            file.write(f"utterance{number:07d}\n{text}\n")


def _packed(writer: Writer) -> Writer:
    """The same as .gz."""

    def write(path: Path, size: int) -> None:
        plain = path.with_suffix(".plain")
        writer(plain, size)
        path.write_bytes(gzip.compress(plain.read_bytes(), 1))
        plain.unlink()

    return write


LARGE: dict[str, Writer] = {
    "checkpoint": _checkpoint,
    "model": _model,
    "weights": _weights,
    "arrays": _arrays,
    "table": _table,
    "tables": _tables,
    "options": _options,
    "experiment": _options,
    "wav": _audio,
    "flac": _audio,
    "log": _log,
    "lexicon": _lexicon,
    "lexicon as JSON": _lexicon_json,
    "tree": _tree,
    "numerators": _numerators,
    "chunks": _chunks,
    "fst": lambda path, size: _fsa(size // 20).write(path),
    "acceptor as text": _fst_text,
    "cuts": _cuts,
    "shard": _shard,
    "rows of matrices": _one_matrix,
    "transcripts": _transcripts,
    "ctm": _ctm,
    "matrices": _matrices,
    "alignments": _alignments,
    "posteriors": _posteriors,
    "symbols": _symbols,
    "kaldi tree": _kaldi_tree,
    "topology": _topology,
    "transition model": _transition_model,
    "examples": _examples,
    "split examples": _examples,
    "training log": _training_log,
    "matrices as text": _matrix_text,
    "fsts as text": _fst_archive,
    "lattices": _lattices,
    "packed lattices": _packed(_lattices),
}
