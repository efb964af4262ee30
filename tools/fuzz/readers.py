"""Every reader of files, each with a sound file to begin from: what fuzzers and tests feed with damaged copies.

A reader gives a value or raises one of fsachain's own errors; anything else (another exception, a crash, a hang, or
memory out of proportion to the file) is a fault of the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fsachain.cli.config import Experiment
from fsachain.cli.steps.model import AcousticModel
from fsachain.data.audio import read_audio
from fsachain.data.cmvn import Cmvn
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.decode.align import read_ctm
from fsachain.decode.wer import read_text
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk, load_chunks, save_chunks
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.numerator_files import load_numerators, save_numerators
from fsachain.graph.topology import Topology
from fsachain.kaldi.archive import read_table
from fsachain.kaldi.stream import Cursor
from fsachain.kaldi.values import read_alignment, read_matrix, read_posterior
from fsachain.nn.tdnnf import Tdnnf
from fsachain.npz_file import read_npz
from fsachain.table import TransitionTable, compile_table
from fsachain.table_file import TableFile, write_tables
from fsachain.train.checkpoint import Checkpoint
from fsachain.train.log import JsonLinesLog
from fsachain.train.yaml_file import load_yaml
from tools.fuzz.damage import Damage, reseal_index, reseal_npz, reseal_safetensors, reseal_tables

RATE = 8000


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        name: of the kind.
        suffix: of the file's name.
        write: writes a sound file at a path.
        read: reads a file, sound or not.
        reseal: changes a sound file inside, so that its checksums still hold; there may be several.
        memory_per_byte: of the file's unpacked size, that reading may take beside a floor: 3 where the content is
            arrays; more where it becomes Python objects.
    """

    name: str
    suffix: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    memory_per_byte: int = 3
    reseal: tuple[Callable[[bytes, Damage], bytes], ...] = ()


def _fsa() -> Fsa:
    return Fsa(3, [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2], [-0.5, -0.5, -0.7, -0.7], [-np.inf, -np.inf, 0.0])


def _lexicon(path: Path) -> Lexicon:
    path.write_text("yes Y EH S\nno N OW\n")
    return Lexicon.read(path)


def _write_lexicon_json(path: Path) -> None:
    _lexicon(path).save(path)


def _tree(path: Path) -> ContextTree:
    return ContextTree.biphone(_lexicon(path).phones, Topology.chain())


def _write_numerators(path: Path) -> None:
    lexicon = _lexicon(path)
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    made = {name: build_numerator([word], lexicon, tree) for name, word in (("u1", "yes"), ("u2", "no"))}
    save_numerators(path, made)


def _write_chunks(path: Path) -> None:
    chunk = Chunk("u1", 0, 4, 9, _fsa(), np.ones(4, np.float32))
    save_chunks(path, {"u1": [[chunk]], "u2": [[chunk]]})


def _write_audio(path: Path) -> None:
    import soundfile

    kind = path.suffix[1:]
    soundfile.write(path, np.sin(np.arange(400.0)) / 2, RATE, format=kind.upper(), subtype="PCM_16")


def _write_model(path: Path) -> None:
    sizes = {"channels": 4, "bottleneck": 2, "prefinal": 4, "time_strides": [1]}
    experiment = Experiment.from_dict(
        {"features": {"num_mel_bins": 4}, "cmvn": {"scope": "none"}, "network": sizes}
    )
    AcousticModel(experiment, Tdnnf(experiment.network_config(3)), Cmvn(experiment.cmvn)).save(path)


def _write_checkpoint(path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    written = Checkpoint(
        1, 0, 4, model.state_dict(), {}, {"cpu": torch.zeros(9, dtype=torch.uint8)}, {"a": [1]}
    )
    written.save(path.parent).replace(path)


def _read_tables(path: Path) -> list[TransitionTable]:
    file = TableFile(path)
    return [file[name] for name in file]


def _read_utterance(path: Path) -> object:
    return read_audio(Utterance("u1", "a", (), str(path)), RATE)


def _data_dir(path: Path) -> object:
    """The file as each of the tables of a directory, beside sound ones."""
    content = path.read_bytes()
    found = []
    for table in ("text", "wav.scp", "segments", "utt2spk"):
        folder = path.parent / "data"
        folder.mkdir(exist_ok=True)
        for name in ("text", "wav.scp", "segments", "utt2spk"):
            (folder / name).write_bytes(content if name == table else _TABLES[name])
        found.append(DataDir.check(folder))
    return found


_TABLES = {
    "text": b"u1 yes\nu2 no\n",
    "wav.scp": b"r1 r1.wav\n",
    "segments": b"u1 r1 0 1\nu2 r1 1 2\n",
    "utt2spk": b"u1 a\nu2 a\n",
}


def _content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _matrix() -> bytes:
    values = np.arange(12, dtype="<f4").tobytes()
    sizes = b"\x04" + (4).to_bytes(4, "little") + b"\x04" + (3).to_bytes(4, "little")
    return b"u1 \0BFM " + sizes + values


def _table(read: Callable[[Cursor], object]) -> Callable[[Path], object]:
    return lambda path: list(read_table(path, read))


def _write_arrays(path: Path) -> None:
    np.savez(path, a=np.arange(9), b=np.ones((2, 3), np.float32))


def _write_tables(path: Path) -> None:
    write_tables(path, {name: compile_table(_fsa(), 3) for name in ("u1", "u2")}, {"of": "nothing"})


def _rewind(path: Path) -> int:
    return JsonLinesLog(path).rewind(bool)


_OPTIONS = _content(b"train: {num_epochs: 3, seed: 1}\nlang:\n  silence: null\n")
_CTM = _content(b"u1 1 0.0 0.5 yes\nu2 1 0.1 0.5 no\n")
READERS = (
    Reader("checkpoint", ".safetensors", _write_checkpoint, Checkpoint.load, 6, (reseal_safetensors,)),
    Reader("model", ".safetensors", _write_model, AcousticModel.load, 40, (reseal_safetensors,)),
    Reader("arrays", ".npz", _write_arrays, read_npz, 3, (reseal_npz,)),
    Reader(
        "table",
        ".npz",
        lambda path: compile_table(_fsa(), 3).save(path),
        TransitionTable.load,
        6,
        (reseal_npz,),
    ),
    Reader("tables", ".tables", _write_tables, _read_tables, 6, (reseal_tables, reseal_index)),
    Reader("options", ".yaml", _OPTIONS, load_yaml, 4000),
    Reader("experiment", ".yaml", _OPTIONS, Experiment.read, 4000),
    Reader("wav", ".wav", _write_audio, _read_utterance, 6),
    Reader("flac", ".flac", _write_audio, _read_utterance, 3000),
    Reader("data directory", ".txt", _content(b"u1 r1 0 1\nu2 r1 1 2\n"), _data_dir, 400),
    Reader("log", ".jsonl", lambda path: JsonLinesLog(path).write("a", b=[1]), _rewind, 400),
    Reader("lexicon", ".txt", _lexicon, Lexicon.read, 400),
    Reader("lexicon as JSON", ".json", _write_lexicon_json, Lexicon.load, 400),
    Reader("tree as JSON", ".json", lambda path: _tree(path).save(path), ContextTree.load, 400),
    Reader("numerators", ".npz", _write_numerators, load_numerators, 40, (reseal_npz,)),
    Reader("chunks", ".npz", _write_chunks, load_chunks, 40, (reseal_npz,)),
    Reader("fst", ".fst", lambda path: _fsa().write(path), Fsa.read, 40),
    Reader("acceptor as text", ".txt", lambda path: path.write_text(_fsa().to_text()), Fsa.from_text, 400),
    Reader("transcripts", ".txt", _content(b"u1 yes no\nu2 no\n"), read_text, 400),
    Reader("ctm", ".ctm", _CTM, read_ctm, 400),
    Reader("matrices", ".ark", _content(_matrix()), _table(read_matrix), 40),
    Reader("alignments", ".ark", _content(b"u1 1 2 3\nu2 4 5\n"), _table(read_alignment), 400),
    Reader("posteriors", ".ark", _content(b"u1 [ 1 0.5 2 0.5 ] [ 3 1 ]\n"), _table(read_posterior), 400),
)
