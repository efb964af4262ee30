"""A small experiment as files, made in a moment: what `fsachain report` reads, without a training."""

import json
from dataclasses import dataclass

import numpy as np

from fsachain import Fsa
from fsachain.asr.plot import TrellisPair
from fsachain.asr.report.collect import Seen

RATE = 8000
SECONDS = 1.2
EPOCHS = 3


@dataclass(frozen=True)
class Names:
    """What people may call things. `words`: one, two, three; the second utterance has errors, the third has none."""

    utterances: tuple[str, str, str] = ("ann-1", "ann-2", "bob-1")
    speakers: tuple[str, str] = ("ann", "bob")
    words: tuple[str, str, str] = ("one", "two", "three")
    phone: str = "AH"
    graph: str = "den"
    error: str = "the disk is full"
    option: str = "value"


SCRIPT = "<script>alert(1)</script>"
HOSTILE = Names(
    utterances=(SCRIPT, "\"onmouseover='alert(2)'", "</title></script><script>alert(3)</script>"),
    speakers=("'><img/src=x/onerror=alert(4)>", "&lt;b&gt;$x_{\\frac$"),
    words=("<svg/onload=alert(5)>", "]]>--><style>*{display:none}</style>", "{{7*7}}{%raw%}"),
    phone="<iframe/src=javascript:alert(6)>",
    graph="<img src=x onerror=alert(7)>",
    error="<script>alert(8)</script>",
    option="</pre><script>alert(9)</script>",
)


def write_experiment(folder, names=Names()):
    """A complete experiment of three utterances: one correct, one with an error of each kind, one correct and short."""
    import soundfile  # which not everyone has installed

    first, second, third = names.utterances
    one, two, three = names.words
    transcripts = {first: [one, two, three], second: [one, two, three, one], third: [three]}
    for split in ("train", "dev", "test"):
        data = folder / "data" / split
        data.mkdir(parents=True)
        for k in range(3):
            soundfile.write(data / f"{k}.wav", tone(200.0 * (k + 1)), RATE, subtype="PCM_16")
        speakers = (names.speakers[0], names.speakers[0], names.speakers[1])
        _write(data / "wav.scp", [f"{name} {k}.wav" for k, name in enumerate(names.utterances)])
        _write(data / "text", [" ".join([name, *words]) for name, words in transcripts.items()])
        _write(data / "utt2spk", [f"{n} {s}" for n, s in zip(names.utterances, speakers, strict=True)])
    # Of the second utterance the first word is another one, the second is missing, and there is one more at the end.
    hypotheses = {first: transcripts[first], second: [three, three, one, two], third: [three]}
    (folder / "decode").mkdir()
    _write(folder / "decode" / "hyp.txt", [" ".join([name, *words]) for name, words in hypotheses.items()])
    tuned = {"best": {"lm_weight": 1.0, "word_insertion_penalty": 0.0, "wer": 12.5}}
    (folder / "decode" / "tuning.json").write_text(json.dumps(tuned))
    _write_alignment(folder / "align", transcripts, names.phone)
    graphs = folder / "graphs"
    graphs.mkdir()
    fsa = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 1], np.log([0.5, 0.5, 0.5]), [-np.inf, np.log(0.5)])
    fsa.write(graphs / f"{names.graph}.fst")
    (folder / "model").mkdir()
    (folder / "model" / "train.jsonl").write_text("".join(map(_line, training_events(names))))
    (folder / "stages.jsonl").write_text("".join(map(_line, stage_events(names))))
    return folder


def tone(hertz, seconds=SECONDS, rate=RATE):
    """A tone that can be told from silence, [L] in -0.5..0.5."""
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def training_events(names=Names()):
    """A finished training."""
    start = {"event": "start", "time": 1.7e9, "utterances": 3, "batches": 2, "parameters": 7}
    start |= {"config": {"num_epochs": EPOCHS, "note": names.option}}
    start |= {"excluded": [{"id": names.utterances[0], "reason": names.error}]}
    events = [start]
    for epoch in range(1, EPOCHS + 1):
        train = {
            "objf": -1.0 / epoch,
            "num": -2.0 / epoch,
            "den": -1.0 / epoch,
            "seconds": 2.0,
            "excluded": 0,
        }
        event = {"event": "epoch", "time": 1.7e9 + epoch, "epoch": epoch, "step": 2 * epoch}
        events.append(event | {"learning_rate": 0.01 / epoch, "train": train, "dev": {"objf": -1.5 / epoch}})
    return [*events, {"event": "end", "time": 1.7e9 + 9, "dev": {"objf": -0.5}, "averaged": 2}]


def stage_events(names=Names()):
    """A run whose align stage failed at first, then was run again."""
    versions, config = {"python": "3.11", names.option: "1"}, {"train": {"note": names.option}}
    run = {"event": "run", "stages": ["train", "decode", "align"], "command": ["run.py", names.option]}
    events = [run | {"versions": versions, "config": config, "seed": 5}]
    for stage, seconds in (("train", 6.0), ("decode", 90.0)):
        events.append({"event": "start", "stage": stage})
        events.append({"event": "end", "stage": stage, "seconds": seconds, "peak_rss": 2.5e8})
    events.append({"event": "start", "stage": "align"})
    events.append({"event": "failed", "stage": "align", "seconds": 1.0, "error": names.error})
    return [event | {"time": 1.7e9} for event in events]


def look(names=Names()):
    """What a network might make of each utterance: it knows the phone half of the time."""

    def seen(utterances):
        numerator = np.tile([1.0, 0.0], (30, 1))
        pair = TrellisPair(numerator, np.full((30, 2), 0.5), (names.phone, "SIL"), (-1.0, -2.0))
        return {utterance.id: Seen(pair, 0.04) for utterance in utterances}, {}

    return seen


def _write_alignment(folder, transcripts, phone):
    folder.mkdir()
    words, phones = [], []
    for name, said in transcripts.items():
        for k, word in enumerate(said):
            words.append(f"{name} 1 {0.1 + 0.25 * k:.3f} 0.200 {word}")
            phones.append(f"{name} 1 {0.1 + 0.25 * k:.3f} 0.200 {phone}")
    _write(folder / "words.ctm", words)
    _write(folder / "phones.ctm", phones)


def _line(event):
    return json.dumps(event) + "\n"


def _write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
