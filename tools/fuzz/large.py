"""Large sound files for every reader, to measure memory on; deterministic, with the words and numbers of real ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from fsachain.cli.config import Experiment
from fsachain.cli.steps.model import AcousticModel
from fsachain.data.cmvn import Cmvn
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk, save_chunks
from fsachain.graph.numerator import Numerator
from fsachain.graph.numerator_files import save_numerators
from fsachain.nn.tdnnf import Tdnnf
from fsachain.table import compile_table
from fsachain.table_file import write_tables
from fsachain.train.checkpoint import Checkpoint
from fsachain.train.yaml_file import MAX_BYTES

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
    generator = np.random.default_rng(4)
    count = size // 40
    ids = generator.integers(1, len(_PHONES), (count, _PHONES_PER_WORD)).tolist()
    words = [[f"{word}{n}", [[ids[n], 1.0]]] for n, word in enumerate(_words(count))]
    record = {"format": "fsachain-lexicon-1", "phones": ["SIL", *_PHONES], "silence": "SIL"}
    text = json.dumps({**record, "silence_prob": 0.5, "oov": None, "words": words}, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")


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


def _alignments(path: Path, size: int) -> None:
    ids = " ".join(map(str, np.random.default_rng(10).integers(1, 3000, 400).tolist()))
    _lines(path, size, lambda number: f"utterance{number:07d} {ids}\n")


def _posteriors(path: Path, size: int) -> None:
    _lines(path, size, lambda number: f"utterance{number:07d} " + "[ 31 0.5 1207 0.5 ] " * 200 + "\n")


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


# Peak memory of reading a large sound file, in times its unpacked size, where it is more than 3: the value is Python
# objects. docs/safety.md has the reasons.
MORE_THAN_THREE = {
    "lexicon": 14.0,
    "lexicon as JSON": 13.0,
    "symbols": 8.0,
    "lattices": 6.0,
    "packed lattices": 7.0,
}
DATA_FOLDER = 8.0  # the same for a data directory

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
    "numerators": _numerators,
    "chunks": _chunks,
    "fst": lambda path, size: _fsa(size // 20).write(path),
    "acceptor as text": _fst_text,
    "transcripts": _transcripts,
    "ctm": _ctm,
    "matrices": _matrices,
    "alignments": _alignments,
    "posteriors": _posteriors,
    "symbols": _symbols,
    "matrices as text": _matrix_text,
    "fsts as text": _fst_archive,
    "lattices": _lattices,
    "packed lattices": _packed(_lattices),
}
