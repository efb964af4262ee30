"""Connected digits spoken by eSpeak NG, in voices that the three splits do not share; no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from fsachain.asr.data.utterance import Utterance
from fsachain.asr.decode.ctm import CtmEntry, write_ctm
from recipes.demo.espeak import Delivery, Synthesizer
from recipes.pipeline.corpus import copy_lexicon, write_audio, write_data_dir

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ACCENTS = ("en", "en-us", "en-gb-x-rp", "en-gb-scotland", "en-us-nyc", "en-gb-x-gbclan")
VARIANTS = {
    "train": (
        *("m1", "m3", "m4", "m6", "m7", "m8", "f1", "f3", "f4", "f5", "Alicia", "Andrea", "Denis", "Hugo"),
        *("Marco", "Michael", "Mike", "belinda", "david", "ian", "linda", "max", "paul", "victor"),
    ),
    "dev": ("m5", "Annie", "john", "steph"),
    "test": ("m2", "f2", "Mario", "anika", "edward", "pablo", "travis", "zac"),
}
STRINGS_PER_VOICE = {"train": 30, "dev": 12, "test": 15}
SAMPLE_RATE = 8000


@dataclass(frozen=True)
class Reading:
    """`snr_db`: how far the background noise lies below the speech, in dB."""

    id: str
    split: str
    voice: str
    words: tuple[str, ...]
    delivery: Delivery
    snr_db: float


def plan_utterances(strings_per_voice: dict[str, int], seed: int) -> list[Reading]:
    """Every voice reads strings of two to seven digits."""
    random = np.random.default_rng(seed)
    plan = []
    for split, variants in VARIANTS.items():
        for number, variant in enumerate(variants):
            voice = f"{ACCENTS[number % len(ACCENTS)]}+{variant}"
            for index in range(strings_per_voice[split]):
                words = tuple(random.choice(DIGITS, size=random.integers(2, 8)).tolist())
                delivery = Delivery(
                    rate=int(random.integers(130, 200)),
                    pitch=int(random.integers(35, 65)),
                    range=int(random.integers(30, 70)),
                )
                utterance_id = f"{variant}-{split}-{index:04d}"
                plan.append(Reading(utterance_id, split, voice, words, delivery, random.uniform(25, 40)))
    return plan


Times = list[tuple[str, float, float]]  # label, start and end in seconds


def _render(
    utterance: Reading, synthesizer: Synthesizer, random: np.random.Generator
) -> tuple[NDArray[np.float64], Times, Times]:
    """Samples at 8 kHz: the digits, some joined and some apart, silence at the ends, noise over all.

    With them the times of words and of phonemes, which are eSpeak NG's own.
    """
    gaps = np.where(random.random(len(utterance.words)) < 0.3, ", ", " ")
    text = "".join(word + gap for word, gap in zip(utterance.words, gaps, strict=True)).rstrip(", ")
    spoken, marks = synthesizer.speak(text + ".", utterance.voice, utterance.delivery)
    speech = spoken / 32768.0
    divisor = np.gcd(SAMPLE_RATE, synthesizer.sample_rate)
    speech = signal.resample_poly(speech, SAMPLE_RATE // divisor, synthesizer.sample_rate // divisor)
    speech *= 10.0 ** random.uniform(-1.0, -0.3) / np.max(np.abs(speech))
    edges = (random.uniform(0.1, 0.3, size=2) * SAMPLE_RATE).astype(int)
    padded = np.pad(speech, (edges[0], edges[1]))
    noise_level = np.sqrt(np.mean(speech**2)) * 10.0 ** (-utterance.snr_db / 20.0)
    noisy = padded + noise_level * random.standard_normal(len(padded))

    def seconds(sample: int) -> float:
        return edges[0] / SAMPLE_RATE + sample / synthesizer.sample_rate

    stops = [mark.sample for mark in marks[1:]] + [len(spoken)]
    said = [(mark, stop) for mark, stop in zip(marks, stops, strict=True) if not mark.phoneme.startswith("_")]
    phones = [(mark.phoneme.strip("',"), seconds(mark.sample), seconds(stop)) for mark, stop in said]
    words = []
    for number, word in enumerate(utterance.words):
        own = [(mark.sample, stop) for mark, stop in said if mark.word == number]
        words.append((word, seconds(own[0][0]), seconds(own[-1][1])))
    return noisy, words, phones


def prepare(
    corpus: Path | None, out: Path, seed: int, strings_per_voice: dict[str, int] | None = None
) -> None:
    """Synthesise the corpus to `out`: lexicon.txt, audio/ and the data directories train, dev and test.

    These also have words.ctm and phones.ctm, with the times that the synthesizer knows.

    The same seed gives the same files when the process has not used eSpeak before. `corpus` is not used.
    """
    copy_lexicon(Path(__file__).with_name("lexicon.txt"), out)
    synthesizer = Synthesizer()
    random = np.random.default_rng([seed, 1])
    recordings: dict[str, list[Utterance]] = {split: [] for split in VARIANTS}
    times: dict[str, dict[str, list[CtmEntry]]] = {s: {"words": [], "phones": []} for s in VARIANTS}
    for utterance in plan_utterances(strings_per_voice or STRINGS_PER_VOICE, seed):
        path = out / "audio" / utterance.split / f"{utterance.id}.flac"
        samples, *tiers = _render(utterance, synthesizer, random)
        write_audio(path, samples, SAMPLE_RATE)
        for name, tier in zip(times[utterance.split], tiers, strict=True):
            times[utterance.split][name] += [
                CtmEntry(utterance.id, start, end - start, label) for label, start, end in tier
            ]
        speaker = utterance.voice.partition("+")[2]
        recordings[utterance.split].append(Utterance(utterance.id, speaker, utterance.words, str(path)))
    for split, rows in recordings.items():
        write_data_dir(out / split, rows)
        for name, entries in times[split].items():
            write_ctm(out / split / f"{name}.ctm", entries)
