"""Every reader of files, each with a sound file to begin from: what fuzzers and tests feed with damaged copies.

A reader gives a value or raises one of fsachain's own errors; anything else (another exception, a crash, a hang, or
memory out of proportion to the file) is a fault of the reader.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fsachain.cli.config import Experiment
from fsachain.cli.steps.initial import read_weights
from fsachain.cli.steps.model import AcousticModel
from fsachain.data.audio import read_audio
from fsachain.data.cmvn import Cmvn
from fsachain.data.kaldi_dir import DataDir, Utterance
from fsachain.data.lhotse_cut import cut_of
from fsachain.decode.align import read_ctm
from fsachain.decode.wer import read_text
from fsachain.errors import DataError, MissingExtraError
from fsachain.fsa import Fsa
from fsachain.graph.chunks import Chunk, load_chunks, save_chunks
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator
from fsachain.graph.numerator_files import load_numerators, save_numerators
from fsachain.graph.topology import Topology
from fsachain.kaldi.archive import read_table, read_value
from fsachain.kaldi.fst import read_fst
from fsachain.kaldi.lattice import read_lattice
from fsachain.kaldi.stream import Cursor
from fsachain.kaldi.symbols import read_symbols
from fsachain.kaldi.values import read_alignment, read_matrix, read_num_rows, read_posterior
from fsachain.nn.tdnnf import Tdnnf
from fsachain.npz_file import read_npz
from fsachain.table import TransitionTable, compile_table
from fsachain.table_file import TableFile, write_tables
from fsachain.train.checkpoint import Checkpoint
from fsachain.train.log import JsonLinesLog
from fsachain.train.yaml_file import load_yaml
from tools.fuzz.damage import Damage, reseal_index, reseal_npz, reseal_safetensors, reseal_tables

RATE = 8000
MEMORY_FLOOR = 4_000_000  # what the smallest file may take: buffers of the libraries, and messages


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        name: of the kind.
        suffix: of the file's name.
        write: writes a sound file at a path.
        read: reads a file, sound or not.
        unpacks_to: bytes that one byte of a compressed file may stand for, in the worst case that is let through.
        reseal: changes a sound file inside, so that its checksums still hold; there may be several.
        memory_per_byte: of the file's unpacked size (`unpacked_size`), that reading may take beside a floor: 3, and more
            only where the value itself is Python objects that are larger; docs/safety.md says which and why.
    """

    name: str
    suffix: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    memory_per_byte: float = 3
    reseal: tuple[Callable[[bytes, Damage], bytes], ...] = ()
    unpacks_to: int = 1

    def most_memory(self, size: int) -> float:
        """Bytes that reading a file of `size` bytes, sound or not, may take."""
        return MEMORY_FLOOR + self.memory_per_byte * self.unpacks_to * max(size, 1)


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


def _read_rows(path: Path) -> int:
    """Of the matrix behind the key, whose numbers are not read."""
    return read_value(f"{path}:3", read_num_rows)


def _write_arrays(path: Path) -> None:
    np.savez(path, a=np.arange(9), b=np.ones((2, 3), np.float32))


def _write_tables(path: Path) -> None:
    write_tables(path, {name: compile_table(_fsa(), 3) for name in ("u1", "u2")}, {"of": "nothing"})


def _write_cut(path: Path) -> None:
    """A sound manifest; lhotse is imported now, where it is installed, and not while memory is traced."""
    with suppress(DataError, MissingExtraError):
        cut_of({"type": "MonoCut"})
    path.write_bytes(_CUT)


def _write_shard(path: Path) -> None:
    """The tar of recordings of a shard."""
    with suppress(DataError, MissingExtraError):
        cut_of({"type": "MonoCut"})
    _write_audio(path.with_suffix(".wav"))
    content = path.with_suffix(".wav").read_bytes()
    member = tarfile.TarInfo("u1.wav")
    member.size = len(content)
    with tarfile.open(path, "w") as tar:
        tar.addfile(member, io.BytesIO(content))


def _read_shard(path: Path) -> object:
    """The file as the recordings of a shard whose manifest is sound."""
    folder = path.parent / "shar"
    folder.mkdir(exist_ok=True)
    cut = json.loads(_CUT)
    cut["recording"] |= {"sources": [{"type": "shar", "channels": [0], "source": ""}], "num_samples": 400}
    cut["recording"]["duration"] = cut["duration"] = 0.05
    (folder / "cuts.000000.jsonl").write_text(json.dumps(cut) + "\n")
    (folder / "recording.000000.tar").write_bytes(path.read_bytes())
    data, faults = DataDir.check(folder)
    return [read_audio(utterance, RATE) for utterance in data], faults


def _write_weights(path: Path) -> None:
    """A safetensors file as other programs write it."""
    from safetensors.torch import save_file

    save_file(torch.nn.Linear(3, 2).state_dict(), str(path))


def _rewind(path: Path) -> int:
    return JsonLinesLog(path).rewind(bool)


def unpacked_size(path: Path) -> int:
    """Bytes of a sound file without its compression; for recordings, of 16-bit samples."""
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    if path.suffix == ".gz":
        return len(gzip.decompress(path.read_bytes()))
    if path.suffix == ".flac":
        import soundfile

        return 2 * int(soundfile.info(path).frames)
    return path.stat().st_size


_CUT = b"""{"id": "u1", "start": 0.0, "duration": 1.0, "channel": 0, "type": "MonoCut", "supervisions": [{"id": "s", \
"recording_id": "r", "start": 0.0, "duration": 1.0, "channel": 0, "text": "yes no", "speaker": "a"}], \
"recording": {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "sampling_rate": 8000, \
"num_samples": 8000, "duration": 1.0}}
"""
_LATTICE = b"u1\n0 1 5 2.5,-12.25,17_17_18\n1 2 4 0.5,1.25,\n2 0,0,3_4\n\n"
_OPTIONS = _content(b"train: {num_epochs: 3, seed: 1}\nlang:\n  silence: null\n")
_CTM = _content(b"u1 1 0.0 0.5 yes\nu2 1 0.1 0.5 no\n")
READERS = (
    Reader("checkpoint", ".safetensors", _write_checkpoint, Checkpoint.load, 3, (reseal_safetensors,)),
    Reader("model", ".safetensors", _write_model, AcousticModel.load, 3, (reseal_safetensors,)),
    Reader("weights", ".safetensors", _write_weights, read_weights),
    Reader("arrays", ".npz", _write_arrays, read_npz, 3, (reseal_npz,)),
    Reader(
        "table",
        ".npz",
        lambda path: compile_table(_fsa(), 3).save(path),
        TransitionTable.load,
        3,
        (reseal_npz,),
    ),
    Reader("tables", ".tables", _write_tables, _read_tables, 3, (reseal_tables, reseal_index)),
    Reader("options", ".yaml", _OPTIONS, load_yaml, 12),
    Reader("experiment", ".yaml", _OPTIONS, Experiment.read, 12),
    Reader("wav", ".wav", _write_audio, _read_utterance),
    Reader("flac", ".flac", _write_audio, _read_utterance, unpacks_to=3000),
    Reader("data directory", ".txt", _content(b"u1 r1 0 1\nu2 r1 1 2\n"), _data_dir, 100),
    Reader("cuts", ".jsonl", _write_cut, DataDir.check, 60),
    Reader("shard", ".tar", _write_shard, _read_shard),
    Reader("log", ".jsonl", lambda path: JsonLinesLog(path).write("a", b=[1]), _rewind),
    Reader("lexicon", ".txt", _lexicon, Lexicon.read, 60),
    Reader("lexicon as JSON", ".json", _write_lexicon_json, Lexicon.load, 60),
    Reader("tree as JSON", ".json", lambda path: _tree(path).save(path), ContextTree.load, 60),
    Reader("numerators", ".npz", _write_numerators, load_numerators, 20, (reseal_npz,)),
    Reader("chunks", ".npz", _write_chunks, load_chunks, 20, (reseal_npz,)),
    Reader("fst", ".fst", lambda path: _fsa().write(path), Fsa.read),
    Reader("acceptor as text", ".txt", lambda path: path.write_text(_fsa().to_text()), Fsa.from_text, 12),
    Reader("transcripts", ".txt", _content(b"u1 yes no\nu2 no\n"), read_text, 60),
    Reader("ctm", ".ctm", _CTM, read_ctm, 60),
    Reader("symbols", ".txt", _content(b"<eps> 0\nyes 1\nno 2\n"), read_symbols, 60),
    Reader("matrices", ".ark", _content(_matrix()), _table(read_matrix)),
    Reader("rows of matrices", ".ark", _content(_matrix()), _read_rows),
    Reader("matrices as text", ".ark", _content(b"u1  [\n 1 2\n 3 4 ]\n"), _table(read_matrix), 12),
    Reader("alignments", ".ark", _content(b"u1 1 2 3\nu2 4 5\n"), _table(read_alignment), 60),
    Reader("posteriors", ".ark", _content(b"u1 [ 1 0.5 2 0.5 ] [ 3 1 ]\n"), _table(read_posterior), 60),
    Reader("fsts as text", ".ark", _content(b"u1\n0 1 1 1 0.5\n1 0\n\n"), _table(read_fst), 60),
    Reader("lattices", ".ark", _content(_LATTICE), _table(read_lattice), 60),
    Reader(
        "packed lattices", ".ark.gz", _content(gzip.compress(_LATTICE, mtime=0)), _table(read_lattice), 60
    ),
)
