"""Preparation of corpora: no recording in two sets, the same seed gives the same files, wrong folders are refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fsachain.data.kaldi_dir import DataDir
from recipes.digits.prepare import DIGITS, SAMPLE_RATE, prepare

ROOT = Path(__file__).resolve().parents[2]
NUM_TAKES = 14


@pytest.fixture(scope="module")
def download(tmp_path_factory):
    """A download in small: two speakers, whose recording number n of any digit is a tone of its own."""
    folder = tmp_path_factory.mktemp("fsdd")
    (folder / "recordings").mkdir()
    time = np.arange(SAMPLE_RATE // 5) / SAMPLE_RATE
    for speaker in ("ada", "bob"):
        for digit in range(10):
            for take in range(NUM_TAKES):
                tone = 0.1 * np.sin(2 * np.pi * (200 + 50 * digit + take) * time)
                soundfile.write(folder / "recordings" / f"{digit}_{speaker}_{take}.wav", tone, SAMPLE_RATE)
    return folder


def test_prepared_download_is_a_corpus(download, tmp_path):
    prepare(download, tmp_path, seed=1)
    assert "seven S EH V AH N" in (tmp_path / "lexicon.txt").read_text()
    sets = {split: DataDir.read(tmp_path / split) for split in ("train", "dev", "test")}
    single = [utterance for utterance in sets["train"] if len(utterance.words) == 1]
    assert len(single) == 2 * 10 * (NUM_TAKES - 10)
    for data in sets.values():
        assert {utterance.speaker for utterance in data} == {"ada", "bob"}
        assert {word for utterance in data for word in utterance.words} <= set(DIGITS)
    longest = max(sets["test"], key=lambda utterance: len(utterance.words))
    info = soundfile.info(longest.audio)
    assert info.samplerate == SAMPLE_RATE
    assert info.duration > 0.2 * len(longest.words)


def test_same_seed_gives_the_same_strings(download, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare(download, tmp_path / name, seed)
    texts = [(tmp_path / name / "dev" / "text").read_text() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]
    audio = [sorted((tmp_path / name / "audio" / "dev").glob("*.flac")) for name in "ab"]
    assert audio[0]
    assert [path.read_bytes() for path in audio[0]] == [path.read_bytes() for path in audio[1]]


def test_synthetic_speech_is_the_same_in_every_process(tmp_path):
    program = (
        "import sys; from pathlib import Path; from recipes.demo.prepare import prepare;"
        "prepare(None, Path(sys.argv[1]), 1, {'train': 1, 'dev': 1, 'test': 1})"
    )
    for name in "ab":
        subprocess.run([sys.executable, "-c", program, tmp_path / name], cwd=ROOT, check=True)
    files = [sorted((tmp_path / name / "audio").rglob("*.flac")) for name in "ab"]
    assert len(files[0]) == 36
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
