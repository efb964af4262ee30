"""What a newcomer runs first: recipes/wav_to_wer.py, here on words that are chords, and the README's program."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import soundfile
import tolerances

SCRIPT = Path(__file__).resolve().parents[2] / "recipes" / "wav_to_wer.py"
RATE = 8000
WORDS = {"low": ("A", "B"), "high": ("C", "D"), "mid": ("E", "A")}
TONES = {"A": 400, "B": 900, "C": 1700, "D": 2600, "E": 3400}  # Hz


def write_corpus(folder, rng):
    (folder / "lang").mkdir(parents=True)
    lexicon = "".join(f"{word} {' '.join(phones)}\n" for word, phones in WORDS.items())
    (folder / "lang/lexicon.txt").write_text(lexicon)
    for split, count in (("train", 24), ("dev", 4), ("test", 6)):
        data = folder / split
        data.mkdir()
        lines = {"text": [], "wav.scp": [], "utt2spk": []}
        for n in range(count):
            name, words = f"{split}-{n:02}", rng.choice(list(WORDS), rng.integers(1, 4)).tolist()
            pause = np.zeros(RATE // 8)
            parts = [pause]
            for word in words:
                for phone in WORDS[word]:
                    at = np.arange(RATE * rng.integers(12, 18) // 100) / RATE
                    parts.append(np.sin(2 * np.pi * TONES[phone] * at))
                parts.append(pause)
            sound = np.concatenate(parts)
            soundfile.write(data / f"{name}.wav", 0.3 * sound + 0.01 * rng.normal(size=len(sound)), RATE)
            lines["text"].append(f"{name} {' '.join(words)}\n")
            lines["wav.scp"].append(f"{name} {name}.wav\n")
            lines["utt2spk"].append(f"{name} {name}\n")
        for file, content in lines.items():
            (data / file).write_text("".join(content))


def test_from_recordings_to_a_low_word_error_rate(tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path / "corpus", np.random.default_rng(0))
    options = ["--epochs", "12", "--channels", "32", "--workers", "1", "--out", str(tmp_path / "model.pt")]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "corpus"), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    objf = [float(value) for value in re.findall(r"objf ([+-]\S+) a frame", printed)]
    assert len(objf) == 12 and objf[0] < objf[-1] < 0.0
    (wer,) = re.findall(r"^test .*?([0-9.]+) %", printed, re.MULTILINE)
    assert float(wer) <= 15.0
    assert (tmp_path / "model.pt").stat().st_size > 10_000


# The README's first program is run as it is printed there.


README = Path(__file__).resolve().parents[2] / "README.md"


def test_quick_start_runs_and_prints_what_it_says(capsys):
    program = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(program[1].splitlines()) <= 30
    names = {}
    exec(compile(program[1], str(README), "exec"), names)
    assert names["loss"].item() > 0.0  # the denominator contains the numerator, so objf is negative
    rows = names["scores"].grad[0].sum(dim=-1)
    assert rows.abs().max() < tolerances.GRADIENT_ROW_SUM
    assert names["scores"].grad.abs().max() > 0.01
    assert "tensor(" in capsys.readouterr().out
