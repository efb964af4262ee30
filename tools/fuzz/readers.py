"""Every reader of files, each with a sound file to begin from: what fuzzers and tests feed with damaged copies."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from fsachain.asr.cli.config import Experiment
from fsachain.asr.cli.lang import Lang
from fsachain.asr.cli.model import AcousticModel, load_word_network, read_weights, save_word_network
from fsachain.asr.data.audio import read_audio
from fsachain.asr.data.cmvn import Cmvn
from fsachain.asr.data.cuts import cut_of
from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.asr.data.kaldi_examples import read_examples
from fsachain.asr.decode.alternatives import WordGraph
from fsachain.asr.decode.ctm import read_ctm
from fsachain.asr.decode.equivalence import Equivalences
from fsachain.asr.decode.nist import CtmWord, read_nist_ctm, read_stm, read_trn, words_in_segments
from fsachain.asr.decode.wer import read_text
from fsachain.asr.kaldi.archive import read_table, read_value
from fsachain.asr.kaldi.examples import read_example, read_objective
from fsachain.asr.kaldi.lattice import read_lattice
from fsachain.asr.kaldi.model import read_topology, read_transition_model, read_tree
from fsachain.asr.kaldi.values import read_alignment, read_matrix, read_num_rows, read_posterior
from fsachain.asr.nn.tdnnf import Tdnnf
from fsachain.asr.nn.word_network import WordNetwork
from fsachain.asr.train.checkpoint import Checkpoint
from fsachain.asr.train.config import load_yaml
from fsachain.asr.train.log import JsonLinesLog
from fsachain.errors import DataError, MissingExtraError
from fsachain.files import read_npz
from fsachain.fsa import Fsa
from fsachain.graph.context import ContextTree
from fsachain.graph.lexicon import Lexicon
from fsachain.graph.numerator import build_numerator, load_numerators, save_numerators
from fsachain.graph.supervision import Chunk, load_chunks, save_chunks
from fsachain.graph.topology import Topology
from fsachain.openfst import read_fst, read_symbols
from fsachain.stream import Cursor
from fsachain.table import TableFile, TransitionTable, compile_table, write_tables
from tools.fuzz.damage import reseal_index, reseal_npz, reseal_safetensors, reseal_tables
from tools.fuzz.reader import Reader, content

RATE = 8000
FSA = Fsa(3, [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2], [-0.5, -0.5, -0.7, -0.7], [-np.inf, -np.inf, 0.0])


def _lexicon(path: Path) -> Lexicon:
    path.write_text("yes Y EH S\nno N OW\n")
    return Lexicon.read(path)


def _tree(path: Path) -> ContextTree:
    return ContextTree.biphone(_lexicon(path).phones, Topology.chain())


def _write_numerators(path: Path) -> None:
    lexicon = _lexicon(path)
    tree = ContextTree.monophone(lexicon.phones, Topology.chain())
    made = {name: build_numerator([word], lexicon, tree) for name, word in (("u1", "yes"), ("u2", "no"))}
    save_numerators(path, made)


def _write_chunks(path: Path) -> None:
    chunk = Chunk("u1", 0, 4, 9, FSA, np.ones(4, np.float32))
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
    network, lexicon = (
        Tdnnf(experiment.network_spec(3).config),
        Lexicon.from_entries([("a", 1.0, ["A"])], silence=None),
    )
    lang = Lang(lexicon, ContextTree.monophone(lexicon.phones, Topology.left_to_right(3)))
    AcousticModel(experiment, network, Cmvn(experiment.cmvn), lang).save(path)


def _write_checkpoint(path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    written = Checkpoint(
        1, 0, 4, model.state_dict(), {}, {"cpu": torch.zeros(9, dtype=torch.uint8)}, {"a": [1]}
    )
    written.save(path.parent).replace(path)


def _read_utterance(path: Path) -> object:
    return read_audio(Utterance("u1", "a", (), str(path)), RATE)


_ALTERNATIVES = b"""a 1 * * <ALT_BEGIN>
a 1 0.1 0.2 yes 0.9
a 1 * * <ALT>
a 1 0.1 0.2 ja
a 1 * * <ALT_END>
a 1 0.5 0.2 no NA
"""
_RULES = b""";; rules
* case_sensitive = "F"
yes => [{yes / ja}] / [ ] __ [ ]
"no" => nope
uh => (%HESITATION)
"""


def _score_trn(path: Path) -> object:
    return [WordGraph.parse(words, name) for name, words in read_trn(path).items()]


def _score_stm(path: Path) -> object:
    segments = read_stm(path)
    heard = [CtmWord(one.recording, one.channel, one.start, 0.1, "yes") for one in segments]
    return words_in_segments(heard, segments)


def _apply_rules(path: Path) -> object:
    return Equivalences.read(path).apply(["YES", "no", "(uh)", "{", "yes", "/", "no", "}"], "ref", "trn")


def _data_dir(path: Path) -> int:
    """The file as each of the tables of a directory, beside sound ones."""
    count = 0
    folder = path.parent / "data"
    folder.mkdir(exist_ok=True)
    for table in _TABLES:
        for name, sound in _TABLES.items():
            (folder / name).write_bytes(sound)
        shutil.copyfile(path, folder / table)
        count += len(DataDir.check(folder)[0])
    return count


_TABLES = {
    "text": b"u1 yes\nu2 no\n",
    "wav.scp": b"r1 r1.wav\n",
    "segments": b"u1 r1 0 1\nu2 r1 1 2\n",
    "utt2spk": b"u1 a\nu2 a\n",
}


def _write_cut(path: Path) -> None:
    """A sound manifest; lhotse is imported now, where it is installed, and not while memory is traced."""
    with suppress(DataError, MissingExtraError):
        cut_of({"type": "MonoCut"})
    path.write_bytes(_CUT)


def _write_shard(path: Path) -> None:
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
    shutil.copyfile(path, folder / "recording.000000.tar")
    data, faults = DataDir.check(folder)
    return [read_audio(utterance, RATE) for utterance in data], faults


def _write_weights(path: Path) -> None:
    """A safetensors file as other programs write it."""
    from safetensors.torch import save_file

    save_file(torch.nn.Linear(3, 2).state_dict(), str(path))


# Kaldi's files.


def _matrix() -> bytes:
    values = np.arange(12, dtype="<f4").tobytes()
    sizes = b"\x04" + (4).to_bytes(4, "little") + b"\x04" + (3).to_bytes(4, "little")
    return b"u1 \0BFM " + sizes + values


def _table(read: Callable[[Cursor], object]) -> Callable[[Path], object]:
    return lambda path: deque(read_table(path, read), maxlen=0)  # as commands do: one value at a time


_CUT = b"""{"id": "u1", "start": 0.0, "duration": 1.0, "channel": 0, "type": "MonoCut", "supervisions": [{"id": "s", \
"recording_id": "r", "start": 0.0, "duration": 1.0, "channel": 0, "text": "yes no", "speaker": "a"}], \
"recording": {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "sampling_rate": 8000, \
"num_samples": 8000, "duration": 1.0}}
"""
_TABLE = compile_table(FSA, 3)
_OPTIONS = content(b"train: {num_epochs: 3, seed: 1}\nlang:\n  silence: null\n")
_CTM = content(b"u1 1 0.0 0.5 yes\nu2 1 0.1 0.5 no\n")
_LATTICE = b"u1\n0 1 5 2.5,-12.25,17_17_18\n1 2 4 0.5,1.25,\n2 0,0,3_4\n\n"
_TREE = b"""ContextDependency 3 1 ToPdf SE 0 [ 1 2 ]
{ TE -1 2 ( CE 0 CE 1 ) CE 2 } EndContextDependency """
TOPOLOGY = b"""<Topology> <TopologyEntry> <ForPhones> 1 </ForPhones> <State> 0 <ForwardPdfClass> 0 <SelfLoopPdfClass> 1 \
<Transition> 0 0.5 <Transition> 1 0.5 </State> <State> 1 </State> </TopologyEntry> </Topology> """
_MODEL = b"""<Tuples> 1 1 0 0 1 </Tuples> <LogProbs> [ 0 -0.7 -0.7 ]
</LogProbs> </TransitionModel> """
EXAMPLE = b"""<Nnet3ChainEg> <NumInputs> 1
<NnetIo> input <I1V> 2 <I1> 0 0 0 <I1> 0 1 0  [
  0.5
  1.5 ]
</NnetIo>
<NumOutputs> 1
<NnetChainSup> output <I1V> 1 <I1> 0 0 0 <Supervision> <Weight> 1 <NumSequences> 1 <FramesPerSeq> 1 \
<LabelDim> 4 <End2End> T <Fsts>
0 1 1 1 0.5
1 0.25

</Fsts> </Supervision> <DW2>  [ 1 ]
</NnetChainSup>
</Nnet3ChainEg>
"""
OBJECTIVE = b"LOG Overall log-probability for 'output' is -0.1 per frame, over 100 frames.\n"
READERS = (
    Reader("checkpoint", ".safetensors", _write_checkpoint, Checkpoint.load, (reseal_safetensors,)),
    Reader("model", ".safetensors", _write_model, AcousticModel.load, (reseal_safetensors,)),
    Reader(
        "word network", ".safetensors",
        lambda path: save_word_network(WordNetwork(Counter({"yes": 2, "no": 1}), ["maybe"]), path),
        load_word_network, (reseal_safetensors,)
    ),
    Reader("weights", ".safetensors", _write_weights, read_weights),
    Reader(
        "arrays", ".npz", lambda path: np.savez(path, a=np.arange(9), b=np.ones((2, 3), np.float32)),
        read_npz, (reseal_npz,)
    ),
    Reader("table", ".npz", _TABLE.save, TransitionTable.load, (reseal_npz,)),
    Reader(
        "tables", ".tables", lambda path: write_tables(path, {"u1": _TABLE, "u2": _TABLE}, {"of": "nothing"}),
        lambda path: sum(table.num_arcs for table in TableFile(path).values()), (reseal_tables, reseal_index)
    ),
    Reader("options", ".yaml", _OPTIONS, load_yaml),
    Reader("experiment", ".yaml", _OPTIONS, Experiment.read),
    Reader("wav", ".wav", _write_audio, _read_utterance),
    Reader("flac", ".flac", _write_audio, _read_utterance),
    Reader("data directory", ".txt", content(b"u1 r1 0 1\nu2 r1 1 2\n"), _data_dir),
    Reader("cuts", ".jsonl", _write_cut, DataDir.check),
    Reader("shard", ".tar", _write_shard, _read_shard),
    Reader("log", ".jsonl", lambda path: JsonLinesLog(path).write("a", b=[1]), lambda path: JsonLinesLog(path).rewind(bool)),
    Reader("lexicon", ".txt", _lexicon, Lexicon.read),
    Reader("lexicon as JSON", ".json", lambda path: _lexicon(path).save(path), Lexicon.load),
    Reader("tree", ".npz", lambda path: _tree(path).save(path), ContextTree.load, (reseal_npz,)),
    Reader("numerators", ".npz", _write_numerators, load_numerators, (reseal_npz,)),
    Reader("chunks", ".npz", _write_chunks, load_chunks, (reseal_npz,)),
    Reader("fst", ".fst", FSA.write, Fsa.read),
    Reader("acceptor as text", ".txt", lambda path: path.write_text(FSA.to_text()), Fsa.from_text),
    Reader("transcripts", ".txt", content(b"u1 yes no\nu2 no\n"), read_text),
    Reader("ctm", ".ctm", _CTM, read_ctm),
    Reader("trn", ".trn", content(b";; a comment\nyes { no / @ } (uh) (u1)\nno (u2)\n"), _score_trn),
    Reader("stm", ".stm", content(b"a 1 anna 0.0 1.5 <O,F> yes { no / ja }\na 1 anna 1.5 2.0 no\n"), _score_stm),
    Reader("ctm of alternatives", ".ctm", content(_ALTERNATIVES), read_nist_ctm),
    Reader("rules of spelling", ".glm", content(_RULES), _apply_rules),
    # Kaldi's files.
    Reader("symbols", ".txt", content(b"<eps> 0\nyes 1\nno 2\n"), read_symbols),
    Reader("matrices", ".ark", content(_matrix()), _table(read_matrix)),
    Reader("rows of matrices", ".ark", content(_matrix()), lambda path: read_value(f"{path}:3", read_num_rows)),
    Reader("matrices as text", ".ark", content(b"u1  [\n 1 2\n 3 4 ]\n"), _table(read_matrix)),
    Reader("alignments", ".ark", content(b"u1 1 2 3\nu2 4 5\n"), _table(read_alignment)),
    Reader("posteriors", ".ark", content(b"u1 [ 1 0.5 2 0.5 ] [ 3 1 ]\n"), _table(read_posterior)),
    Reader("fsts as text", ".ark", content(b"u1\n0 1 1 1 0.5\n1 0\n\n"), _table(read_fst)),
    Reader("lattices", ".ark", content(_LATTICE), _table(read_lattice)),
    Reader("packed lattices", ".ark.gz", content(gzip.compress(_LATTICE, mtime=0)), _table(read_lattice)),
    Reader("kaldi tree", ".tree", content(_TREE), read_tree),
    Reader("topology", ".topo", content(TOPOLOGY), read_topology),
    Reader(
        "transition model", ".mdl", content(b"<TransitionModel> " + TOPOLOGY + _MODEL), read_transition_model
    ),
    Reader("examples", ".ark", content(b"a " + EXAMPLE), _table(read_example)),
    Reader(
        "split examples", ".ark", content(b"a " + EXAMPLE),
        lambda path: sum(len(found.example.features) for found in read_examples(path))
    ),
    Reader("training log", ".log", content(OBJECTIVE), read_objective),
)  # fmt: skip
