"""The tutorial's commands and programs, in their order, on a few recorded digits: a reader who copies them gets a report."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from fsachain.cli import main
from fsachain.decode.wer import read_text

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
UTTERANCES = {"jackson": 9, "lucas": 9, "nicolas": 9, "theo": 3, "yweweler": 3}
SMALLER = {
    "network": {"channels": 32, "bottleneck": 16},
    "train": {"num_epochs": 2, "batch_size": 9, "num_threads": 1},
}
_BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def run_command(line, monkeypatch):
    monkeypatch.setattr(sys, "argv", shlex.split(line))
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def write_table(digits, folder):
    """Recordings and transcripts as a reader has them."""
    source = digits / "connected" / "train"
    (folder / "audio").mkdir()
    rows = []
    for speaker, count in UTTERANCES.items():
        texts = {
            name: words for name, words in read_text(source / "text").items() if name.startswith(speaker)
        }
        for name in list(texts)[:count]:
            (folder / "audio" / f"{name}.flac").symlink_to(source / "audio" / f"{name}.flac")
            rows.append(f"{name}.flac\t{speaker}\t{' '.join(texts[name])}\n")
    (folder / "transcripts.tsv").write_text("".join(rows))


def test_ten_steps_lead_from_recordings_to_a_report(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(shared / "data" / "digits", tmp_path)
    commands = []
    for skipped, language, text in _BLOCK.findall(TUTORIAL.read_text(encoding="utf-8")):
        if skipped:
            continue
        if language == "python":
            exec(compile(text, str(TUTORIAL), "exec"), {})
        elif language == "yaml":
            config = yaml.safe_load(text)
            for section, options in SMALLER.items():
                config[section] |= options
            Path("config.yaml").write_text(yaml.safe_dump(config))
        else:
            assert language == "sh"
            for line in text.splitlines():
                assert run_command(line, monkeypatch) == 0, (line, capsys.readouterr())
                commands.append(line.split()[1])
    assert commands[-1] == "report"
    assert {split: len(read_text(Path(split, "text"))) for split in ("train", "dev", "test")} == {
        "train": 27,
        "dev": 3,
        "test": 3,
    }
    assert set(read_text(Path("decoded/hyp.txt"))) == set(read_text(Path("test/text")))
    assert Path("aligned/words.ctm").read_text()
    assert "<audio" in Path("report.html").read_text()
