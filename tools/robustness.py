"""Word error rates of a model on recordings that are not as those of its training: `python -m tools.robustness EXP`.

Every recording of a test set is changed in one way, such as zeros in front of it or a codec, and the set is decoded with
the weights that the run in EXP found on its development set. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import butter, resample_poly, sosfiltfilt

from fsachain.asr.cli.decoding import DecodingGraphs, Recogniser, Weights
from fsachain.asr.cli.model import AcousticModel, lang_of
from fsachain.asr.cli.resources import Resources
from fsachain.asr.data.audio import read_audio, seeded_generator
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.decode.wer import ErrorCounts

Samples = NDArray[np.float32]
Change = Callable[[Samples, int, np.random.Generator], Samples]
STEP = 1 / 32768  # of a 16-bit file
SECONDS = (0.05, 0.1, 1.0, 30.0)
PLACES = ("before", "behind", "inside")
SILENCES = {"zeros": 0.0, "noise of 1 LSB": STEP, "noise at -70 dB": 10 ** (-70 / 20)}  # RMS amplitude
CODEC_RATE = 8000
SHORTEST_PAUSE = 15  # steps of 10 ms; what is shorter may be the closure of a stop, in the middle of a word


def quantised(samples: Samples) -> Samples:
    """As a 16-bit file keeps them."""
    return np.clip(np.rint(samples / STEP), -32768, 32767).astype(np.float32) * np.float32(STEP)


def pause(samples: Samples, rate: int) -> int:
    """The middle of the longest stretch that is 30 dB below the loudest tenth of a second; that of the file without one."""
    width = rate // 100
    count = len(samples) // width
    energy = np.square(samples[: count * width], dtype=np.float64).reshape(count, width).mean(axis=1)
    loud = np.sort(energy)[-10:][0] if count else 0.0
    quiet = energy <= loud / 1000.0
    inner = np.flatnonzero(~quiet)
    if not len(inner):
        return len(samples) // 2
    quiet[: inner[0]] = quiet[inner[-1] :] = False  # what surrounds the speech is no pause in it
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(np.int8)))
    if not len(edges):
        return -1
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return (
        int(edges[2 * longest] + edges[2 * longest + 1]) // 2 * width
        if lengths[longest] >= SHORTEST_PAUSE
        else -1
    )


def silence(amplitude: float, seconds: float, place: str) -> Change:
    """Insert silence; inside, into the longest pause of 0.15 s or more, if there is one."""

    def change(samples: Samples, rate: int, generator: np.random.Generator) -> Samples:
        at = {"before": 0, "behind": len(samples), "inside": pause(samples, rate)}[place]
        if at < 0:
            return samples
        inserted = quantised(amplitude * generator.standard_normal(round(seconds * rate)))
        return np.concatenate([samples[:at], inserted, samples[at:]])

    return change


def dropout(samples: Samples, rate: int, generator: np.random.Generator) -> Samples:
    """0.2 s of the longest pause are lost, and become zeros."""
    at, changed = pause(samples, rate), samples.copy()
    if at >= 0:
        changed[max(0, at - rate // 10) : at + rate // 10] = 0.0
    return changed


def scaled(decibels: float) -> Change:
    return lambda samples, rate, generator: quantised(samples * np.float32(10 ** (decibels / 20)))


def clipped(samples: Samples, rate: int, generator: np.random.Generator) -> Samples:
    """At half the level that 1 % of the samples exceed."""
    limit = np.quantile(np.abs(samples), 0.99) / 2
    return np.clip(samples, -limit, limit)


def telephone_band(samples: Samples, rate: int, generator: np.random.Generator) -> Samples:
    band = butter(6, [300.0, min(3400.0, 0.49 * rate)], "band", fs=rate, output="sos")
    return np.asarray(sosfiltfilt(band, samples), np.float32)


def noisy(ratio: float) -> Change:
    """White noise at a signal-to-noise ratio in dB over the whole recording."""

    def change(samples: Samples, rate: int, generator: np.random.Generator) -> Samples:
        level = np.sqrt(np.mean(np.square(samples, dtype=np.float64))) * 10 ** (-ratio / 20)
        return np.asarray(samples + level * generator.standard_normal(len(samples)), np.float32)

    return change


def coded(file_format: str, subtype: str, at_rate: int | None = None, **options: object) -> Change:
    """Written by libsndfile and read again, at another rate if one is given."""

    def change(samples: Samples, rate: int, generator: np.random.Generator) -> Samples:
        own = at_rate or rate
        file = io.BytesIO()
        limited = np.clip(resample_poly(samples, own, rate), -1.0, 1.0)
        soundfile.write(file, limited, own, format=file_format, subtype=subtype, **options)
        file.seek(0)
        decoded, _ = soundfile.read(file, dtype="float32")
        return np.asarray(resample_poly(decoded, rate, own), np.float32)

    return change


def mp3(samples: Samples, rate: int, generator: np.random.Generator) -> Samples:
    """At 32 kbit/s: libsndfile maps 0 to 1 to the bit rates that MPEG has for a sampling rate, highest first."""
    highest = 64 if rate < 16000 else 160
    level = (highest - 32) / (highest - 8) - 0.05
    encode = coded("MP3", "MPEG_LAYER_III", bitrate_mode="CONSTANT", compression_level=level)
    return encode(samples, rate, generator)


def cut(begin: float, end: float) -> Change:
    """Without the first and last seconds."""
    return lambda samples, rate, generator: samples[round(begin * rate) : len(samples) - round(end * rate)]


CHANGES: dict[str, Change] = {
    "plain": lambda samples, rate, generator: samples,
    **{
        f"{name}, {seconds:g} s {place}": silence(amplitude, seconds, place)
        for name, amplitude in SILENCES.items()
        for seconds in SECONDS
        for place in PLACES
    },
    "dropout of 0.2 s in a pause": dropout,
    "20 dB quieter": scaled(-20.0),
    "20 dB louder": scaled(20.0),
    "constant offset of 0.05": lambda samples, rate, generator: samples + np.float32(0.05),
    "clipped": clipped,
    "300 to 3,400 Hz": telephone_band,
    "MP3, 32 kbit/s": mp3,
    "GSM 6.10": coded("WAV", "GSM610", CODEC_RATE),
    "u-law": coded("WAV", "ULAW", CODEC_RATE),
    "one of two channels dead": scaled(20 * np.log10(0.5)),
    "noise at 10 dB": noisy(10.0),
    "noise at 0 dB": noisy(0.0),
    "first 0.5 s cut off": cut(0.5, 0.0),
    "last 0.5 s cut off": cut(0.0, 0.5),
}


def write_changed(data: DataDir, change: Change, rate: int, folder: Path) -> DataDir:
    """The data set with changed recordings, as a data directory in the folder."""
    lines = {"wav.scp": [], "text": [], "utt2spk": []}
    for number, one in enumerate(data):
        samples = change(read_audio(one, rate), rate, seeded_generator("robustness", one.id))
        soundfile.write(folder / f"{number}.wav", np.clip(samples, -1.0, 1.0), rate, subtype="PCM_16")
        lines["wav.scp"].append(f"{one.id} {number}.wav\n")
        lines["text"].append(f"{one.id} {' '.join(one.words)}\n")
        lines["utt2spk"].append(f"{one.id} {one.speaker}\n")
    for name, content in lines.items():
        (folder / name).write_text("".join(content))
    return DataDir.read(folder)


def table(
    exp: Path, test: Path, names: Sequence[str], arpa: Path | None = None
) -> list[tuple[str, ErrorCounts]]:
    """Errors by change; prints a row for each."""
    model = AcousticModel.load(exp / "model" / "model.safetensors")
    tuned = json.loads((exp / "decode" / "tuning.json").read_text())["best"]
    weights = Weights(*(tuned[name] for name in Weights._fields))
    own = exp / "decode" / "grammar.arpa"
    graphs = DecodingGraphs(lang_of(model), arpa or (own if own.is_file() else None))
    recogniser = Recogniser(model, graphs, Resources())
    data, rate = DataDir.read(test), model.experiment.features.sample_rate
    print("| recordings | WER % | ins | del | sub |\n|---|---|---|---|---|", flush=True)
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            changed = write_changed(data, CHANGES[name], rate, Path(folder))
            with contextlib.redirect_stdout(sys.stderr):
                errors = recogniser.decode(changed, Path(folder) / "decoded", weights).total
        rows.append((name, errors))
        counts = f"{errors.insertions} | {errors.deletions} | {errors.substitutions}"
        print(f"| {name} | {errors.wer:.2f} | {counts} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.robustness", description=__doc__)
    parser.add_argument("exp", type=Path, help="folder of `fsachain run` or a recipe, with model and decode")
    parser.add_argument("--test", type=Path, help="data directory (default EXP/data/test)")
    parser.add_argument("--arpa", type=Path, help="language model (default that of the run)")
    parser.add_argument("--only", nargs="+", default=[""], help="changes whose names hold one of these texts")
    options = parser.parse_args()
    names = [name for name in CHANGES if any(part in name for part in options.only)]
    table(options.exp, options.test or options.exp / "data" / "test", names, options.arpa)


if __name__ == "__main__":
    main()
