"""The mini_librispeech recipe: downloads from a server of our own, and all stages on digits laid out as LibriSpeech."""

from __future__ import annotations

import gzip
import hashlib
import re
import tarfile
from pathlib import Path

import pytest

from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.decode.wer import read_text
from fsachain.errors import DataError
from fsachain.graph.grammar import estimate_arpa
from recipes.mini_librispeech import download
from recipes.mini_librispeech.prepare import prepare
from recipes.pipeline.main import DONE, run_recipe

ROOT = Path(__file__).resolve().parents[3]
SPEAKERS = {"jackson": "19", "lucas": "26", "nicolas": "27", "theo": "32", "yweweler": "39"}
UTTERANCES = {"train-clean-5": 8, "dev-clean-2": 2}
OPTIONS = [
    "--workers=1", "--set=features.sample_rate=8000", "--set=features.num_mel_bins=40",
    "--set=perturbation.speeds=[1.0]", "--set=phone_lm.ngram_order=2",
    "--set=phone_lm.no_prune_ngram_order=2", "--set=phone_lm.num_extra_lm_states=0",
    "--set=network.channels=48", "--set=network.bottleneck=24", "--set=network.prefinal=48",
    "--set=network.time_strides=[1, 1, 1]", "--set=train.num_epochs=3", "--set=train.batch_size=8",
    "--set=train.average_last=2", "--set=train.num_threads=1", "--set=decoding.search.lattice_beam=5.0",
    "--set=rescoring.num_hypotheses=20",
]  # fmt: skip


def text_of(folder):
    return {name: [word.upper() for word in words] for name, words in read_text(folder / "text").items()}


@pytest.fixture(scope="module")
def corpus(shared, tmp_path_factory):
    """Recorded digits in the folders and under the names of LibriSpeech."""
    digits = shared / "data" / "digits"
    out = tmp_path_factory.mktemp("corpus")
    for part, source in (("train-clean-5", "train"), ("dev-clean-2", "test")):
        texts = text_of(digits / "connected" / source)
        for name, number in SPEAKERS.items():
            chapter = out / "LibriSpeech" / part / number / "198"
            chapter.mkdir(parents=True)
            chosen = [key for key in texts if key.startswith(name)][: UTTERANCES[part]]
            lines = []
            for index, key in enumerate(chosen):
                utterance = f"{number}-198-{index:04d}"
                audio = digits / "connected" / source / "audio" / f"{key}.flac"
                (chapter / f"{utterance}.flac").symlink_to(audio)
                words = ["QUUX"] if (part, name, index) == ("train-clean-5", "jackson", 0) else texts[key]
                lines.append(f"{utterance} {' '.join(words)}\n")
            (chapter / f"{number}-198.trans.txt").write_text("".join(lines))
    entries = (digits / "lang" / "lexicon.txt").read_text().splitlines()
    words = [line.split(maxsplit=1) for line in entries if not line.startswith("<")]
    (out / "librispeech-lexicon.txt").write_text("".join(f"{word.upper()}\t{rest}\n" for word, rest in words))
    sentences = list(text_of(digits / "connected" / "train").values())
    for name, order in (("3-gram.pruned.3e-7.arpa.gz", 1), ("3-gram.pruned.1e-7.arpa.gz", 3)):
        with gzip.open(out / name, "wt") as file:
            file.write(estimate_arpa(sentences, order=order))
    return out


@pytest.fixture(scope="module")
def exp(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini")
    arguments = [f"--exp={folder}", f"--corpus={corpus}", *OPTIONS]
    recipe = ROOT / "recipes" / "mini_librispeech"
    assert run_recipe(recipe, prepare, arguments) in DONE
    return folder


def test_the_last_two_speakers_of_the_training_set_are_held_out(exp):
    sets = {split: DataDir.read(exp / "data" / split) for split in ("train", "dev", "test")}
    speakers = {split: {one.speaker for one in data} for split, data in sets.items()}
    assert speakers == {"train": {"19", "26", "27"}, "dev": {"32", "39"}, "test": set(SPEAKERS.values())}
    assert {split: len(data) for split, data in sets.items()} == {"train": 24, "dev": 16, "test": 10}
    assert next(iter(sets["train"])).words == ("QUUX",)


def test_the_whole_path_ends_in_two_word_error_rates(exp):
    lines = (exp / "report.txt").read_text().splitlines()
    assert re.match(r"test +%?WER", lines[0])
    assert re.match(r"rescored +%?WER", lines[1])
    found = read_text(exp / "rescore" / "hyp.txt")
    assert set(found) == {one.id for one in DataDir.read(exp / "data" / "test")}
    assert set().union(*found.values()) <= {line.split()[0] for line in (exp / "data" / "lexicon.txt").open()}
    assert (exp / "rescore" / "tuning.txt").read_text().count("*") == 1
    assert (exp / "report.html").is_file()


def test_what_a_corpus_lacks_is_named(corpus, tmp_path):
    with pytest.raises(DataError, match="needs --corpus FOLDER"):
        prepare(None, tmp_path, 1)
    with pytest.raises(DataError, match=r"train-clean-5: no SPEAKER/CHAPTER/\*\.trans\.txt"):
        prepare(tmp_path, tmp_path / "out", 1)
    (tmp_path / "LibriSpeech").symlink_to(corpus / "LibriSpeech")
    with pytest.raises(DataError, match=r"librispeech-lexicon\.txt: no such lexicon.*download\.py"):
        prepare(tmp_path, tmp_path / "out", 1)
    (tmp_path / "librispeech-lexicon.txt").symlink_to(corpus / "librispeech-lexicon.txt")
    with pytest.raises(DataError, match=r"has none of 3-gram\.pruned\.3e-7\.arpa\.gz"):
        prepare(tmp_path, tmp_path / "out", 1)
    packed = (corpus / "3-gram.pruned.3e-7.arpa.gz").read_bytes()
    (tmp_path / "3-gram.pruned.3e-7.arpa.gz").write_bytes(packed[:-20])
    with pytest.raises(DataError, match="damaged"):
        prepare(tmp_path, tmp_path / "out", 1)


@pytest.fixture
def resources(tmp_path, monkeypatch):
    """A folder with a small archive and a small text in place of the real ones."""
    chapter = tmp_path / "source" / "LibriSpeech" / "part" / "1" / "2"
    chapter.mkdir(parents=True)
    (chapter / "1-2.trans.txt").write_text("1-2-0000 ONE\n")
    lexicon, part = tmp_path / "server" / "11" / "lexicon.txt", tmp_path / "server" / "31" / "part.tar.gz"
    for path in (lexicon, part):
        path.parent.mkdir(parents=True)
    with tarfile.open(part, "w:gz") as tar:
        tar.add(tmp_path / "source" / "LibriSpeech", "LibriSpeech")
    lexicon.write_text("ONE W AH N\n" * 50)
    lexicon_md5, part_md5 = (hashlib.md5(path.read_bytes()).hexdigest() for path in (lexicon, part))
    wanted = (
        download.Resource("11/lexicon.txt", lexicon_md5),
        download.Resource("31/part.tar.gz", part_md5, "LibriSpeech/part"),
    )
    monkeypatch.setattr(download, "RESOURCES", wanted)
    return tmp_path / "server"


def test_downloads_are_unpacked_and_one_of_another_checksum_is_deleted(serve, resources, tmp_path, capsys):
    server = f"--server={serve(resources)}"
    assert download.main([str(tmp_path / "good"), server]) == 0
    assert (tmp_path / "good/LibriSpeech/part/1/2/1-2.trans.txt").read_text() == "1-2-0000 ONE\n"
    (resources / "11" / "lexicon.txt").write_text("<html>moved</html>")
    assert download.main([str(tmp_path / "out"), server]) == 1
    assert re.search(r"error: lexicon\.txt: has MD5 \w{32}, expected \w{32}", capsys.readouterr().err)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path):
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "evil", "../outside")
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="outside"):
        download.unpack(tmp_path / "evil.tar.gz", tmp_path / "out", "LibriSpeech")
    assert not (tmp_path / "outside").exists()
