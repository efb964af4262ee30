"""The commands that use a model: recordings in, words, times and files out."""

import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tolerances
import torch
from cli_fixtures import ARPA, assert_one_line, save_untrained
from refusals import refuses

from fsachain import Aligner
from fsachain.asr.cli import decoding
from fsachain.asr.cli.decoding import DecodingGraphs, Recogniser, network_outputs
from fsachain.asr.cli.model import AcousticModel, lang_of
from fsachain.asr.cli.resources import Resources
from fsachain.asr.cli.use import utterance_names
from fsachain.asr.data import DataDir
from fsachain.asr.decode.ctm import read_ctm
from fsachain.asr.decode.lattices import as_transducer
from fsachain.asr.decode.rescore import RescoringConfig, WordSequence, sums_over_paths
from fsachain.asr.decode.times import BoundaryModel
from fsachain.asr.kaldi.archive import read_table
from fsachain.asr.kaldi.lattice import read_lattice
from fsachain.errors import ConfigError, counted
from fsachain.graph.grammar import grammar_from_arpa
from fsachain.openfst import Transducer, write_fst

RATE = 8000
SECONDS = 3.0
SETTINGS = {
    "features": {"sample_rate": RATE, "num_mel_bins": 8},
    "network": {"channels": 8, "bottleneck": 0, "time_strides": [1], "prefinal": 0},
    "cmvn": {"scope": "utterance"},
}


MODEL = "model/model.safetensors"
SPEEDS = {"speeds": (0.9, 1.0)}


@pytest.fixture
def model(built):
    """`MODEL`, beside the language folder."""
    return save_untrained(built / MODEL, built / "lang", SETTINGS)


def record(path, rate=RATE, channels=1, seconds=SECONDS):
    """Noise that changes its colour four times a second."""
    rng = np.random.default_rng(0)
    pitch = np.repeat(rng.uniform(200, 3000, int(4 * seconds) + 1), rate // 4)[: int(rate * seconds)]
    tone = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / rate) + 0.01 * rng.normal(size=len(pitch))
    soundfile.write(path, np.repeat(tone[:, None], channels, axis=1), rate)
    return path


@pytest.mark.parametrize("form", ["kaldi", "openfst"])
def test_decode_keeps_lattices_whose_best_words_are_those_that_are_scored(fsachain, model, tmp_path, form):
    said_by_noise(tmp_path / "said")
    out = tmp_path / "out"
    told = fsachain.ok(f"decode {MODEL} said out --lattices {form}").out
    assert "transcripts: 3 of 3 words (100.0 %), 2 different ones, are not in the language model" in told
    assert "most often: nobody 2, knows 1" in told
    names = [line.split()[0] for line in (out / "words.txt").read_text().splitlines()]
    words = (out / "hyp.txt").read_text().split()[1:]
    assert words == [entry.label for entry in read_ctm(out / "words.ctm")]
    if form == "kaldi":
        ((name, lattice),) = read_table(out / "lattices.ark", read_lattice)
        graph = as_transducer(lattice.expanded()).to_openfst()
    else:
        pywrapfst = pytest.importorskip("pywrapfst")
        far = pywrapfst.FarReader.open(str(out / "lattices.far"))
        name, graph = far.get_key(), far.get_fst()
    assert name == "a"
    best = Transducer.from_openfst(pytest.importorskip("pywrapfst").shortestpath(graph).topsort())
    assert words == [names[word] for word in best.olabel[np.argsort(best.src)] if word]
    fsachain.ok(f"decode {MODEL} said out")
    assert sorted(path.name for path in out.iterdir()) == ["hyp.txt", "wer.json", "wer.txt"]


@pytest.mark.parametrize("option", ["--open-vocabulary", "--unknown-word-penalty 2"])
def test_mending_refuses_options_of_words_that_are_spelt(fsachain, model, tmp_path, option):
    said_by_noise(tmp_path / "said")
    status, _, errors = fsachain(f"mend {MODEL} said out {option}")
    assert (
        status == 2
        and f"{option.split()[0]}: transcripts are mended with words of the lexicon alone" in errors
    )


def test_transcripts_without_words_or_in_another_case_are_told(fsachain, model, tmp_path):
    said_by_noise(tmp_path / "said")
    (tmp_path / "said" / "wav.scp").write_text("a a.wav\nb a.wav\n")
    (tmp_path / "said" / "utt2spk").unlink()
    (tmp_path / "said" / "text").write_text("a\nb YES\n")
    told = fsachain.ok(f"decode {MODEL} said out").out
    assert "1 of 2 utterances have no words; all that is heard in them counts as inserted" in told
    assert "most often: YES 1; the lexicon has 'yes' for 'YES'\n" in told


def test_mending_names_words_that_it_cannot_keep(fsachain, model, tmp_path):
    said_by_noise(tmp_path / "said")
    told = fsachain.ok(f"mend {MODEL} said out").out
    assert "transcripts: 3 of 3 words (100.0 %), 2 different ones, are not in the language model" in told
    assert "most often: nobody 2, knows 1" in told


def said_by_noise(folder, words="nobody knows nobody", seconds=SECONDS, name="a"):
    folder.mkdir()
    record(folder / f"{name}.wav", seconds=seconds)
    (folder / "wav.scp").write_text(f"{name} {name}.wav\n")
    (folder / "text").write_text(f"{name} {words}\n")
    (folder / "utt2spk").write_text(f"{name} {name}\n")


def test_what_lattices_are_kept_with_is_the_model_not_how_it_is_written(model, tmp_path):
    """An ARPA file, and Kaldi's G.fst of it, whose words have other numbers and whose arcs are in their order."""
    (tmp_path / "words.arpa").write_text(ARPA)
    acoustic = AcousticModel.load(model)
    lang = lang_of(acoustic)
    words = sorted(lang.lexicon.words, reverse=True)
    names = ["<eps>", *words, "#0"]
    (tmp_path / "words.txt").write_text("".join(f"{word} {number}\n" for number, word in enumerate(names)))
    own = Transducer.from_openfst(grammar_from_arpa(tmp_path / "words.arpa", lang.lexicon))
    numbers = np.array([len(names) - 1, *(names.index(word) for word in lang.lexicon.words)])
    back_off = own.ilabel == 0
    other = replace(own, ilabel=numbers[own.ilabel], olabel=np.where(back_off, 0, numbers[own.olabel]))
    write_fst(other.to_openfst().arcsort(), tmp_path / "G.fst")
    pair = tmp_path / "G.fst", tmp_path / "words.txt"
    graphs = DecodingGraphs(lang, tmp_path / "words.arpa"), DecodingGraphs(lang, None, pair)
    arpa, grammar = (Recogniser(acoustic, one, Resources()).made_with for one in graphs)
    assert arpa == grammar
    first, second = (
        Recogniser(acoustic.mean_with(acoustic, share), graphs[0], Resources()) for share in (0.5, 0.4)
    )
    assert len({str(one) for one in (arpa, first.made_with, second.made_with)}) == 3


def test_rescoring_the_lattices_of_decode_is_rescoring_a_search(fsachain, model, tmp_path):
    said_by_noise(tmp_path / "said")
    (tmp_path / "words.arpa").write_text(ARPA)
    decoded = tmp_path / "decoded"
    search = "--dev said --open-vocabulary --workers 1"
    told = fsachain.ok(f"decode {MODEL} said decoded --lattices kaldi {search}").out
    assert "have to be spelt" in told and "of 3 unknown words found" in told
    weights = json.loads((decoded / "weights.json").read_text())
    tuned = json.loads((decoded / "tuning.json").read_text())["best"]
    found = json.loads((decoded / "wer.json").read_text())["total"]
    assert {name: tuned[name] for name in weights} == weights
    assert tuned["errors"] == found["errors"], "the set is its own development set"
    given = " ".join(f"--{name.replace('_', '-')}={value}" for name, value in weights.items())
    rescore = f"rescore {MODEL} said words.arpa"
    fsachain.ok(f"{rescore} anew {search} {given}")
    fsachain.ok(f"{rescore} kept {search} --lattices decoded")
    for name in ("hyp.txt", "tuning.txt"):
        assert (tmp_path / "kept" / name).read_text() == (tmp_path / "anew" / name).read_text()
    heard = fsachain(f"transcribe {MODEL} said/a.wav --format text --open-vocabulary {given}").out.split()
    assert heard == (decoded / "hyp.txt").read_text().split()
    save_untrained(
        tmp_path / "sums" / "sums.safetensors", tmp_path / "lang", {**SETTINGS, "rescoring": SPEEDS}
    )
    refused = fsachain(f"rescore sums/sums.safetensors said words.arpa kept {search}")
    assert_one_line(refused, "rescoring.speeds = [0.9, 1]: expected [] where")
    wider = {**SETTINGS, "network": {**SETTINGS["network"], "channels": 16}}
    save_untrained(tmp_path / "wider" / "wider.safetensors", tmp_path / "lang", wider)
    for other, what in (
        (f"{rescore} kept --dev said", "language model"),
        (f"{rescore} kept {search} --arpa words.arpa", "language model"),
        (f"rescore wider/wider.safetensors said words.arpa kept {search}", "model"),
    ):
        assert_one_line(fsachain(f"{other} --lattices decoded"), f"lattices are of another {what}; expected")
    for change, told in (
        ({"first_pass_share": "0.5 1f"}, "first_pass_share"),
        ({"lexicon": "1f"}, "lexicon"),
    ):
        kept = json.loads((decoded / "made_with.json").read_text())
        (decoded / "made_with.json").write_text(json.dumps(kept | change))
        failed = fsachain(f"{rescore} kept {search} --lattices decoded")
        assert_one_line(failed, f"lattices are of another {told}; expected")
        (decoded / "made_with.json").write_text(json.dumps(kept))
    (decoded / "made_with.json").unlink()
    fsachain.ok(f"{rescore} kept {search} --lattices decoded")  # of an earlier version, nobody knows
    heard = (decoded / "dev" / "hyp.txt").read_text()
    (decoded / "dev" / "hyp.txt").write_text(heard + "z\n")
    failed = fsachain(f"{rescore} kept {search} --lattices decoded")
    assert failed.status == 1 and "dev: was made of utterance 'z', which is not in the data set" in failed.err
    (decoded / "dev" / "hyp.txt").write_text(heard)
    (decoded / "dev" / "lattices.ark").write_bytes(b"")
    failed = fsachain(f"{rescore} kept {search} --lattices decoded")
    assert failed.status == 1 and re.search(
        r"lattices.ark: no lattice of '\w+', of which hyp.txt", failed.err
    )
    (decoded / "weights.json").unlink()
    failed = fsachain(f"{rescore} kept {search} --lattices decoded")
    assert failed.status == 1 and "no weights.json" in failed.err


def test_sums_over_paths_are_the_mean_over_all_speeds(model, tmp_path):
    said_by_noise(tmp_path / "said")
    data, found = DataDir.read(tmp_path / "said"), AcousticModel.load(model)
    own = replace(
        found, experiment=replace(found.experiment, rescoring=RescoringConfig(speeds=SPEEDS["speeds"]))
    )
    sequences = [("yes",), ("no", "yes"), ("yes",) * 99]
    lists = {"a": [WordSequence(words, 0.0) for words in sequences]}
    sums = Recogniser(own, DecodingGraphs(own.lang, None), Resources())._path_sums(data, lists)
    scores = [network_outputs(own, data, Resources(), speed=speed)[1]["a"] for speed in SPEEDS["speeds"]]
    each = [sums_over_paths(sequences, one, own.lang.lexicon, own.lang.tree) for one in scores]
    assert len(scores[0]) > len(scores[1]) and sums["a"][2] == -np.inf
    np.testing.assert_allclose(sums["a"], np.mean(each, axis=0), rtol=tolerances.FLOAT32_ROUNDING)


@pytest.mark.parametrize("weights", [[0.5, 1.0], [0.0]])
def test_a_tuning_that_does_not_settle_takes_the_best_point_that_was_searched(
    fsachain, built, monkeypatch, weights
):
    """With weight 0 the search sees no grammar and ends at once."""
    save_untrained(built / MODEL, built / "lang", {**SETTINGS, "decoding": {"lm_weights": weights}})
    said_by_noise(built / "said")
    monkeypatch.setattr(decoding, "MOST_SEARCHES", 1)
    fsachain.ok(f"decode {MODEL} said out --dev said --lattices kaldi")
    best = json.loads((built / "out" / "tuning.json").read_text())["best"]
    scored = json.loads((built / "out" / "dev" / "wer.json").read_text())["total"]
    assert best["errors"] == scored["errors"] and best["lm_weight"] == weights[0]
    assert best["word_insertion_penalty"] == (0.0 if weights[0] else 0.5)


def words_of(line):
    return json.loads(line)["words"]


def test_transcribe_prints_words_in_order_with_times_and_confidences(fsachain, model, tmp_path):
    record(tmp_path / "a b.wav")
    transcribe = f"transcribe {MODEL} 'a b.wav'"
    status, output, errors = fsachain(f"{transcribe} --format json")
    assert (status, errors) == (0, "")
    found = words_of(output)
    assert found
    assert json.loads(output)["seconds"] == SECONDS
    for word in found:
        assert word["word"] in ("yes", "no")
        assert 0 <= word["start"] < word["end"] <= SECONDS + 0.05
        assert 0 < word["confidence"] <= 1
    assert all(a["end"] <= b["start"] + 1e-3 for a, b in itertools.pairwise(found))
    table = fsachain(transcribe).out.splitlines()
    assert table[0] == f"a b.wav: 3.00 s, {counted(len(found), 'word')}"
    assert [line.split()[-1] for line in table[2:]] == [word["word"] for word in found]
    text = fsachain(f"{transcribe} --format text").out.split()
    assert text == ["a_b", *(word["word"] for word in found)]
    (tmp_path / "a.ctm").write_text(fsachain(f"{transcribe} --format ctm").out)
    entries = read_ctm(tmp_path / "a.ctm")
    assert [(entry.utterance, entry.label) for entry in entries] == [("a_b", word["word"]) for word in found]
    assert [entry.start for entry in entries] == [word["start"] for word in found]
    aligned = Aligner.load(model).align(tmp_path / "a b.wav", None, [word["word"] for word in found]).words
    assert [entry.start for entry in aligned] == [word["start"] for word in found]
    assert [entry.start + entry.duration for entry in aligned] == pytest.approx([x["end"] for x in found])


def test_recordings_of_one_name_have_keys_of_their_own(fsachain, model, tmp_path):
    for folder in ("a b", "c"):
        (tmp_path / folder).mkdir()
        record(tmp_path / folder / "1.wav")
    record(tmp_path / "c" / "1.flac")
    record(tmp_path / "c" / "2.wav")
    names = ["a%20b/1", "c/1.wav", "c/1.flac", "2"]
    files = "'a b/1.wav' c/1.wav c/1.flac c/2.wav"
    text = fsachain.ok(f"transcribe {MODEL} {files} --format text").out
    assert [line.split()[0] for line in text.splitlines()] == names
    ctm = fsachain.ok(f"transcribe {MODEL} {files} --format ctm").out
    assert list(dict.fromkeys(line.split()[0] for line in ctm.splitlines())) == names
    paths = [Path(name) for name in ("x y.wav", "x_y.wav", "d/z.wav", "d/z.wav")]
    assert utterance_names(paths) == ["x%20y", "x_y", "z", "z"]


def test_a_recording_longer_than_a_piece_is_heard_to_its_end(fsachain, model, tmp_path):
    record(tmp_path / "long.wav", seconds=12.0)
    found = words_of(fsachain.ok(f"transcribe {MODEL} long.wav --format json --max-seconds 2").out)
    assert found[-1]["end"] > 10.0
    assert all(a["end"] <= b["start"] + 1e-3 for a, b in itertools.pairwise(found))


def test_files_that_cannot_be_read_are_named_and_the_others_transcribed(fsachain, model, tmp_path):
    record(tmp_path / "good.wav")
    (tmp_path / "bad.wav").write_text("not audio")
    status, output, errors = fsachain(f"transcribe {MODEL} absent.wav bad.wav good.wav --format text")
    assert status == 3
    assert output.startswith("good ")
    assert "absent.wav': no such file" in errors
    assert "bad.wav': cannot be read" in errors
    assert "2 of 3 recordings could not be transcribed" in errors


def test_align_long_gives_each_word_of_the_text_its_time(fsachain, model, tmp_path):
    words = ["yes", "no", "no", "yes"] * 8
    (tmp_path / "text.txt").write_text("\n".join(words))
    record(tmp_path / "speech.wav", 16000, 2, seconds=20.0)
    out = tmp_path / "aligned"
    options = "--window 6 --lookahead 2 --textgrid speech.TextGrid"
    status, output, errors = fsachain(f"align-long {MODEL} speech.wav text.txt aligned {options}")
    assert (status, errors) == (0, "")
    assert "20 s of speech, at least 60 are needed" in output and "20.0 s, 32 words, mean fit -" in output
    entries = read_ctm(out / "words.ctm")
    assert [entry.label for entry in entries] == words
    ends = [entry.start + entry.duration for entry in entries]
    assert all(end <= entry.start + 1e-3 for end, entry in zip(ends, entries[1:], strict=False))
    assert ends[-1] <= 20.0 + 0.03  # the last output frame may reach beyond the end
    fits = [line.split() for line in (out / "fit.txt").read_text().splitlines()]
    assert [fit[2] for fit in fits] == words
    assert all(float(fit[1]) <= 0 for fit in fits)
    assert {entry.label for entry in read_ctm(out / "phones.ctm")} <= {"Y", "EH", "S", "N", "OW", "SIL"}
    assert "speech" not in (tmp_path / "speech.TextGrid").read_text()


def test_align_long_tells_words_that_it_cannot_look_for(fsachain, model, tmp_path):
    (tmp_path / "text.txt").write_text("Yes, maybe no maybe soon\n")
    record(tmp_path / "speech.wav", 8000, 1, seconds=5.0)
    told = fsachain.ok(f"align-long {MODEL} speech.wav text.txt aligned --coarse").out
    assert "3 of 5 words are not in the lexicon; most often: maybe 2, soon 1\n" in told


def test_align_long_tells_words_that_it_skips(fsachain, model, tmp_path):
    (tmp_path / "text.txt").write_text("yes no " * 150)
    record(tmp_path / "speech.wav", seconds=5.0)
    told = fsachain.ok(f"align-long {MODEL} speech.wav text.txt out --coarse --tolerant").out
    skipped = (tmp_path / "out" / "not_said.txt").read_text().splitlines()
    assert (
        f"{len(skipped)} of 300 words were not said: out/not_said.txt; text and recording hardly fit" in told
    )
    numbers = [int(line.split()[0]) for line in skipped]
    assert skipped == [f"{n} {'no' if n % 2 == 0 else 'yes'}" for n in numbers]
    kept = {entry.label for entry in read_ctm(tmp_path / "out" / "words.ctm")}
    assert kept and len(read_ctm(tmp_path / "out" / "words.ctm")) >= 300 - len(skipped)


def test_align_long_of_a_recording_within_one_window_is_align(fsachain, model, tmp_path):
    words = "yes no " * 5
    (tmp_path / "text.txt").write_text(words)
    said_by_noise(tmp_path / "corpus", words, seconds=10.0, name="speech")
    fsachain.ok(f"align {MODEL} corpus short --coarse")
    fsachain.ok(f"align-long {MODEL} corpus/speech.wav text.txt long --filler-cost inf")
    for name in ("words.ctm", "phones.ctm"):
        assert read_ctm(tmp_path / "long" / name) == read_ctm(tmp_path / "short" / name)


def test_the_aligner_takes_paths_samples_and_any_rate_and_equals_align_long(
    fsachain, model, tmp_path
) -> None:
    words, path = ["yes", "no", "yes"], record(tmp_path / "speech.wav", 16000, 2)
    (tmp_path / "text.txt").write_text(" ".join(words))
    fsachain.ok(f"align-long {MODEL} speech.wav text.txt out --filler-cost inf")
    aligner = Aligner.load(model)
    found = aligner.align(path, None, "yes no - yes")
    assert found.ok and found.utterance == "speech"
    assert found.to_ctm() == (tmp_path / "out" / "words.ctm").read_text()
    samples, rate = soundfile.read(path, dtype="int16")
    items = [
        (path, None, words),
        (samples.T, rate, words),
        (torch.from_numpy(samples.T / 32768.0), rate, words),
    ]
    for other in aligner.align_many(items, batch_size=2):
        assert [entry[1:4] for entry in other.words] == [entry[1:4] for entry in found.words]
    json.dumps(found.to_dict())
    found.to_textgrid(tmp_path / "a.TextGrid")
    assert '"yes"' in (tmp_path / "a.TextGrid").read_text()
    assert found.seconds == len(samples) / rate


def test_boundaries_are_learned_from_a_minute_and_taken_from_beside_the_model(fsachain, model, tmp_path):
    words = ["yes", "no"] * 40
    said_by_noise(tmp_path / "said", " ".join(words), seconds=61.0)
    fsachain.ok(f"align {MODEL} said coarse --coarse")
    fsachain.ok(f"align {MODEL} said fine --textgrid grids")
    coarse, fine = (read_ctm(tmp_path / out / "words.ctm") for out in ("coarse", "fine"))
    assert [entry.label for entry in fine] == words and fine != coarse
    assert (
        not (tmp_path / "coarse" / "boundaries.npz").exists()
        and '"no"' in (tmp_path / "grids/a.TextGrid").read_text()
    )
    short, beside = record(tmp_path / "b.wav"), model.with_name("boundaries.npz")
    plain = Aligner.load(model).align(short, None, words[:4]).words
    shutil.copy(tmp_path / "fine" / "boundaries.npz", beside)
    fsachain.ok(f"align {MODEL} said again")
    assert read_ctm(tmp_path / "again" / "words.ctm") == fine
    assert not (tmp_path / "again" / "boundaries.npz").exists()
    found = Aligner.load(model).align(short, None, words[:4]).words
    assert found != plain and [entry.label for entry in found] == words[:4]
    replace(BoundaryModel.load(beside), sample_rate=16000).save(beside)
    assert_one_line(fsachain(f"align {MODEL} said again"), "of 16000 Hz; the model's rate is 8000 Hz")
    refuses(ConfigError, "at 16000 Hz; the model's are at 8000 Hz", Aligner.load, model)


def test_the_aligner_names_what_cannot_be_aligned_and_goes_on(model, tmp_path) -> None:
    path, aligner = record(tmp_path / "speech.wav"), Aligner.load(model)
    items = [
        (path, None, "yes no"),
        (path, None, "yes no " * 150),
        (tmp_path / "absent.wav", None, "yes", "u3"),
        (path, None, "..."),
        (np.zeros(9), RATE, "yes"),
        (np.zeros(9), None, "yes"),
        (np.zeros(9), RATE + 0.5, "yes"),
        (np.zeros((900, 2)), RATE, "yes"),
        (np.zeros(900, bool), RATE, "yes"),
        (path, None, None),
        (path, None, "unheard of"),
        (np.zeros(9000), float(RATE), "yes"),
    ]
    found = list(aligner.align_many(items))
    assert [one.ok for one in found] == [True] + [False] * 9 + [True, True]
    reasons = (
        *("no path through", "no such file", "the text has no words", "no path", "sample_rate = None"),
        *("sample_rate = 8000.5", r"[900, 2] and dtype float64; expected samples [L] or [channels, L]"),
        *("dtype bool; expected", "the text has no words"),
    )
    for one, reason in zip(found[1:10], reasons, strict=True):
        assert reason in one.reason and not one.words
    assert found[2].utterance == "u3"
    assert [word.label for word in found[10].words] == ["unheard", "of"]
    assert not aligner.align(path, None, "yes no " * 150).ok
    assert aligner.align(path, None, "yes no " * 60, tolerant=True).ok
