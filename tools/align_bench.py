"""How well `fsachain align-corpus` aligns: read sentences whose times are known, with right transcripts and with wrong ones.

Sixteen voices of eSpeak NG read ten English sentences each, eight minutes in all, at 16 kHz. The synthesizer says where each
word begins and ends. Two sentences are read by all voices, all others once. Words and pronunciations are those of a data
directory (`--words`), so they are not the synthesizer's own, as a lexicon is never a speaker's own.

    python -m tools.align_bench build OUT                    # OUT/right and OUT/wrong, corpora with OUT/lexicon.txt
    python -m tools.align_bench run OUT right -- [options]   # trains and aligns with `fsachain align-corpus`, then scores
    python -m tools.align_bench score OUT right FOLDER       # scores what align-corpus wrote before

In OUT/wrong a third of the sentences have a word in the recording that the transcript lacks, and another third have a word
in the transcript that was not spoken.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from fsachain.asr.data.kaldi_dir import DataDir, Utterance
from fsachain.asr.decode.ctm import CtmEntry, by_utterance, read_ctm, write_ctm
from recipes.demo.espeak import Delivery, Synthesizer
from recipes.pipeline.corpus import write_audio, write_data_dir
from tools import SHARED, parser_of

ACCENTS = ("en-us", "en", "en-us-nyc", "en-gb-x-rp", "en-029", "en-gb-scotland", "en-gb-x-gbclan")
VARIANTS = ("m1", "f1", "m3", "f2", "m4", "f3", "m7", "f4", "Denis", "Alicia", "Marco", "Andrea")
VARIANTS += ("Michael", "belinda", "david", "linda")
SENTENCES = 10  # of each voice
COMMON = 2  # of them, read by all voices
FEWEST_WORDS, MOST_WORDS = 6, 12
PAUSE_PROB = 0.12  # between two words
SAMPLE_RATE = 16000
INSIDE = 0.5  # share of a stretch that has to lie in a planted word, or of a planted word in stretches
FAR = 0.1  # seconds: a boundary further off is an outlier
WORST = 30  # boundaries that are listed


@dataclass(frozen=True)
class Sentence:
    """`spoken` are the words of the recording, `written` those of the transcript, as (word, number in `spoken` or None)."""

    id: str
    voice: str
    spoken: tuple[str, ...]
    written: tuple[tuple[str, int | None], ...]


def read_sentences(words: Path, random: np.random.Generator) -> list[tuple[str, ...]]:
    """Sentences of 6 to 12 words, by turns from the transcripts of a data directory and of words at random.

    Short transcripts are put together. Words at random make the vocabulary large, and most words rare, as in read sentences.
    """
    phrases = sorted({one.words for split in ("train", "dev", "test") for one in DataDir.read(words / split)})
    phrases = [phrase for phrase in phrases if len(phrase) > 1]
    sentences = []
    pending: tuple[str, ...] = ()
    for number in random.permutation(np.tile(np.arange(len(phrases)), 2)):
        pending += phrases[number]
        if len(pending) > MOST_WORDS:
            pending = ()
        elif len(pending) >= FEWEST_WORDS:
            sentences.append(pending)
            pending = ()
    vocabulary = sorted({word for phrase in phrases for word in phrase})
    shuffled = iter(np.concatenate([random.permutation(vocabulary) for _ in range(20)]).tolist())
    for _ in range(len(sentences)):
        count = int(random.integers(FEWEST_WORDS, MOST_WORDS + 1))
        sentences.append(tuple(next(shuffled) for _ in range(count)))
    return [sentences[number] for number in random.permutation(len(sentences))]


def with_errors(words: Sequence[str], number: int, random: np.random.Generator) -> Sentence:
    """Sentence `number`: right, with a word that the transcript lacks, or with one that was not spoken."""
    place = int(random.integers(1, len(words) - 1))
    written = list(enumerate(words))
    if number % 3 == 1:
        del written[place]
    spoken = list(words)
    pairs: list[tuple[str, int | None]] = [(word, index) for index, word in written]
    if number % 3 == 2:
        del spoken[place]
        pairs = [
            (word, None if index == place else index - (index > place)) for index, word in enumerate(words)
        ]
    return Sentence("", "", tuple(spoken), tuple(pairs))


def render(
    sentence: Sentence, synthesizer: Synthesizer, delivery: Delivery, random: np.random.Generator
) -> tuple[NDArray[np.float64], list[tuple[float, float]]] | None:
    """Samples with some pauses and quiet noise, and start and end of each spoken word; None if eSpeak joins words."""
    pauses = np.where(random.random(len(sentence.spoken)) < PAUSE_PROB, ", ", " ")
    text = "".join(word + pause for word, pause in zip(sentence.spoken, pauses, strict=True)).rstrip(", ")
    edges = random.uniform(0.1, 0.35, size=2)
    gain, snr_db = 10.0 ** random.uniform(-1.0, -0.3), random.uniform(25.0, 40.0)
    spoken, marks = synthesizer.speak(text + ".", sentence.voice, delivery)
    rate = synthesizer.sample_rate
    divisor = np.gcd(SAMPLE_RATE, rate)
    speech = signal.resample_poly(spoken / 32768.0, SAMPLE_RATE // divisor, rate // divisor)
    speech *= gain / np.max(np.abs(speech))
    samples = np.pad(speech, np.round(edges * SAMPLE_RATE).astype(int))
    samples += np.sqrt(np.mean(speech**2)) * 10.0 ** (-snr_db / 20.0) * random.standard_normal(len(samples))
    stops = [mark.sample for mark in marks[1:]] + [len(spoken)]
    times = []
    for number in range(len(sentence.spoken)):
        own = [
            (mark.sample, stop)
            for mark, stop in zip(marks, stops, strict=True)
            if mark.word == number and not mark.phoneme.startswith("_")
        ]
        if not own:
            return None
        times.append((edges[0] + own[0][0] / rate, edges[0] + own[-1][1] / rate))
    return samples, times


def build(words: Path, out: Path, seed: int) -> None:
    """Write OUT/lexicon.txt, and for right and wrong transcripts recordings, a data directory, words.ctm and truth.jsonl.

    words.ctm has the times of written words that were spoken. truth.jsonl lists the written words that were not spoken,
    and the times of spoken words that the transcript lacks.
    """
    synthesizer = Synthesizer()
    random = np.random.default_rng(seed)
    lines = (words / "lang" / "lexicon.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("<")]
    out.mkdir(parents=True, exist_ok=True)
    (out / "lexicon.txt").write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    sentences = iter(read_sentences(words, random))
    common = [next(sentences) for _ in range(COMMON)]
    texts = [
        [common[n] if n < COMMON else next(sentences) for n in range(SENTENCES)] for _ in range(len(VARIANTS))
    ]
    for kind in ("right", "wrong"):
        rows, entries, truths = [], list[CtmEntry](), []
        for voice, variant in enumerate(VARIANTS):
            delivery = Delivery(
                *(int(random.integers(*limits)) for limits in ((180, 240), (35, 65), (30, 70)))
            )
            for n, words_of in enumerate(texts[voice]):
                plain = Sentence("", "", words_of, tuple((word, k) for k, word in enumerate(words_of)))
                made = plain if kind == "right" else with_errors(words_of, voice + n, random)
                name = f"{variant}-{n:02d}"
                own = Sentence(name, f"{ACCENTS[voice % len(ACCENTS)]}+{variant}", made.spoken, made.written)
                rendered = render(own, synthesizer, delivery, random)
                if rendered is None:
                    continue
                samples, times = rendered
                path = out / kind / "audio" / f"{name}.flac"
                write_audio(path, samples, SAMPLE_RATE)
                rows.append(Utterance(name, variant, tuple(word for word, _ in own.written), str(path)))
                for word, index in own.written:
                    if index is not None:
                        start, end = times[index]
                        entries.append(CtmEntry(name, start, end - start, word))
                written = {index for _, index in own.written}
                truths.append(
                    {
                        "utterance": name,
                        "written": [word for word, _ in own.written],
                        "not_spoken": [k for k, (_, index) in enumerate(own.written) if index is None],
                        "lacking": [times[k] for k in range(len(own.spoken)) if k not in written],
                    }
                )
        write_data_dir(out / kind / "data", rows)
        write_ctm(out / kind / "words.ctm", entries)
        text = "".join(json.dumps(truth) + "\n" for truth in truths)
        (out / kind / "truth.jsonl").write_text(text, encoding="utf-8")
        seconds = sum(len_of(row) for row in rows)
        print(f"{out / kind}: {len(rows)} sentences, {len(entries)} words, {seconds / 60:.1f} minutes")


def len_of(row: Utterance) -> float:
    import soundfile

    return float(soundfile.info(row.audio).duration)


def share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.2f} %" if whole else "-"


def covered(stretch: tuple[float, float], others: Iterable[tuple[float, float]]) -> float:
    """The share of a stretch that lies in others."""
    start, end = stretch
    inside = sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in others)
    return inside / max(end - start, 1e-6)


def score(corpus: Path, aligned: Path, worst: int = 0) -> dict[str, str]:
    """What `align-corpus` wrote against what is known."""
    truths = [json.loads(line) for line in (corpus / "truth.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [
        json.loads(line) for line in (aligned / "aligned.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    ]
    found = {row["utterance"]: row for row in rows}
    times = by_utterance(read_ctm(aligned / "words.ctm"))
    known = by_utterance(read_ctm(corpus / "words.ctm"))
    errors: list[tuple[float, str]] = []
    spoken_words = left_out = sentences_left_out = 0
    not_spoken = skipped_rightly = skipped = 0
    other_times: list[float] = []
    others_right = lacking = lacking_found = 0
    for truth in truths:
        name = truth["utterance"]
        row = found.get(name)
        if row is None or row["reason"]:
            print(f"{name}: not aligned {'' if row is None else row['reason']}")
            continue
        absent, gone = set(truth["not_spoken"]), set(row["skipped"])
        spoken_words += len(truth["written"]) - len(absent)
        left_out += len(gone - absent)
        sentences_left_out += bool(gone - absent)
        not_spoken += len(absent)
        # A word said to be absent is right also where its equal beside it is.
        skipped += len(gone)
        skipped_rightly += len(gone & absent)
        there = known[name]
        here = times.get(name, [])
        matcher = SequenceMatcher(None, [e.label for e in there], [e.label for e in here], autojunk=False)
        for block in matcher.get_matching_blocks():
            for k in range(block.size):
                left, right = there[block.a + k], here[block.b + k]
                ends = left.start + left.duration, right.start + right.duration
                place = (
                    f"{name:12} {block.a + k:2d}/{len(there)} {left.label:14} {left.start:.2f}-{ends[0]:.2f}"
                )
                errors.append((right.start - left.start, f"{place} start {right.start:.2f}"))
                errors.append((ends[1] - ends[0], f"{place} end   {ends[1]:.2f}"))
        stretches = [(one["start"], one["end"]) for one in row["other"]]
        other_times += [end - start for start, end in stretches]
        others_right += sum(covered(one, truth["lacking"]) >= INSIDE for one in stretches)
        lacking += len(truth["lacking"])
        lacking_found += sum(covered(tuple(one), stretches) >= INSIDE for one in truth["lacking"])
    off = 1000.0 * np.abs([error for error, _ in errors])
    share_left_out = share(left_out, spoken_words)
    report = {
        "spoken words left out": f"{left_out} of {spoken_words} ({share_left_out}), in {sentences_left_out} sentences",
        "boundaries": f"mean {off.mean():.1f}, median {np.median(off):.1f}, p95 {np.percentile(off, 95):.1f} ms",
        "beyond 100 ms": share(float((off > 1000 * FAR).sum()), len(off)),
        "<other>": f"{len(other_times)}, {sum(other_times):.2f} s, {sum(t < 0.1499 for t in other_times)} below 0.15 s",
        "<other> precision": f"{others_right} of {len(other_times)} ({share(others_right, len(other_times))})",
        "<other> recall": f"{lacking_found} of {lacking} ({share(lacking_found, lacking)})",
        "not said precision": f"{skipped_rightly} of {skipped} ({share(skipped_rightly, skipped)})",
        "not said recall": f"{skipped_rightly} of {not_spoken} ({share(skipped_rightly, not_spoken)})",
    }
    for name, value in report.items():
        print(f"{name:22} {value}")
    for error, place in sorted(errors, key=lambda one: -abs(one[0]))[:worst]:
        print(f"{1000 * error:+8.0f} ms  {place}")
    return report


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("action", choices=("build", "run", "score"))
    parser.add_argument("out", type=Path)
    parser.add_argument("kind", nargs="?", default="right", choices=("right", "wrong"))
    parser.add_argument("folder", nargs="?", type=Path, help="what align-corpus wrote; run: where it writes")
    parser.add_argument("--words", type=Path, default=SHARED / "data" / "prompts_en")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worst", type=int, default=0, help="how many of the worst boundaries are listed")
    arguments, options = parser.parse_known_args()
    out, corpus = arguments.out, arguments.out / arguments.kind
    folder = arguments.folder or out / f"aligned-{arguments.kind}"
    if arguments.action == "build":
        build(arguments.words, out, arguments.seed)
        return
    if arguments.action == "run":
        begin = time.perf_counter()
        command = [sys.executable, "-m", "fsachain", "align-corpus", corpus / "data", folder]
        subprocess.run([*map(str, command), *(o for o in options if o != "--")], check=True)
        print(f"{time.perf_counter() - begin:.0f} s")
    score(corpus, folder, arguments.worst)


if __name__ == "__main__":
    main()
