"""Decoding graph and network outputs in, words out."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import tolerances
from graph_paths import scores_along
from refusals import refuses

from fsachain.asr.decode.decoder import Decoder, DecoderConfig, decode, lattices, search_all
from fsachain.asr.decode.transcribe import word_posteriors
from fsachain.errors import ConfigError, DataError, GraphError, ShapeError
from fsachain.openfst import Transducer

WORDS = ("yes", "no", "maybe")
PDFS = ((0, 1), (2, 3), (4, 5, 6))
WORD_COST = 0.75
SELF_LOOP_COST = 0.25


def word_loop(word_costs=(WORD_COST,) * 3):
    """Any sequence of one or more words; each pdf of a word lasts one frame or more."""
    arcs, states = [(1, 0, 0, 0, 0.0)], 2  # from the end of a word, 1, to the start
    for word, (pdfs, cost) in enumerate(zip(PDFS, word_costs, strict=True), start=1):
        state = 0
        for pdf in pdfs:
            said, paid = (word, cost) if state == 0 else (0, 0.0)
            arcs += [(state, states, pdf + 1, said, -paid), (states, states, pdf + 1, 0, -SELF_LOOP_COST)]
            state, states = states, states + 1
        arcs.append((state, 1, 0, 0, 0.0))
    finals = np.full(states, -np.inf)
    finals[1] = -0.5
    return Transducer.of_arcs(arcs, finals).to_openfst()


def spell(words, frames_per_pdf=2, gain=5.0, noise=0.0):
    """Scores under which the pdfs of these words are the likely ones."""
    rng = np.random.default_rng(len(words))
    pdfs = [pdf for word in words for pdf in PDFS[WORDS.index(word)] for _ in range(frames_per_pdf)]
    scores = rng.normal(scale=noise, size=(len(pdfs), 7)) if noise else np.zeros((len(pdfs), 7))
    scores[np.arange(len(pdfs)), pdfs] += gain
    return scores.astype(np.float32)


def test_the_two_scores_are_those_of_the_path_counted_by_hand():
    decoder = Decoder(word_loop(), WORDS, DecoderConfig(acoustic_scale=0.5))
    found = decoder.decode(spell(("yes", "no")))
    cost = 2 * WORD_COST + 4 * SELF_LOOP_COST + 0.5
    assert found.graph_log_prob == pytest.approx(-cost, abs=tolerances.FEW_FLOAT32_TERMS)
    assert found.acoustic_log_prob == pytest.approx(8 * 5.0 * 0.5, abs=tolerances.FEW_FLOAT32_TERMS)
    lattice = decoder.lattice(spell(("yes", "no")))
    best = word_posteriors(lattice)
    assert [WORDS[one.word - 1] for one in best] == ["yes", "no"]


def test_a_graph_comes_as_object_bytes_or_path(tmp_path):
    graph = word_loop()
    graph.write(str(tmp_path / "graph.fst"))
    found = [
        Decoder(form, WORDS).decode(spell(("no",)))
        for form in (graph, graph.write_to_string(), tmp_path / "graph.fst")
    ]
    assert found[0] == found[1] == found[2]


def test_a_graph_file_written_anew_is_read_anew(tmp_path):
    path = tmp_path / "graph.fst"
    word_loop().write(str(path))
    before = Decoder(path, WORDS).decode(spell(("no",)))
    word_loop((WORD_COST, WORD_COST + 1.0, WORD_COST)).write(str(path))
    after = Decoder(path, WORDS).decode(spell(("no",)))
    change = before.graph_log_prob - after.graph_log_prob
    assert change == pytest.approx(1.0, abs=tolerances.FEW_FLOAT32_TERMS)


def test_workers_do_not_change_results_nor_their_order():
    outputs = {f"u{count}": spell(("yes", "no", "maybe")[:count] * count, noise=1.0) for count in (3, 1, 2)}
    calls, started = [], []
    progress = {"progress": lambda *call: calls.append(call)}
    alone = decode(outputs, word_loop(), WORDS, num_workers=1, **progress)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    shared = decode(outputs, word_loop(), WORDS, num_workers=2, **progress)
    with ThreadPoolExecutor(2, initializer=lambda: started.append(1)) as executor:
        lent = decode(outputs, word_loop(), WORDS, executor=executor)
    assert list(alone.items()) == list(shared.items()) == list(lent.items())
    assert calls[-1] == (3, 3) and started


def _touch(folder, decoder, scores, name):
    (folder / name).touch()
    time.sleep(0.05)


def test_an_interrupted_search_does_not_wait_for_the_utterances_that_are_left(tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    scores = {f"u{n}": spell(["yes"]) for n in range(64)}
    with pytest.raises(KeyboardInterrupt):
        search_all(partial(_touch, tmp_path), scores, word_loop(), WORDS, num_workers=2, progress=interrupt)
    assert 1 <= len(list(tmp_path.iterdir())) < 16


def test_an_impossible_utterance_has_no_words_and_is_not_complete():
    decoder = Decoder(word_loop(), WORDS)
    for scores in (np.full((4, 7), -np.inf), np.zeros((0, 7))):
        found = decoder.decode(scores)
        assert (found.words, found.complete, found.graph_log_prob) == ((), False, -np.inf)
        assert decoder.lattice(scores) is None


def test_a_path_cut_short_is_reported_as_incomplete():
    found = Decoder(word_loop(), WORDS).decode(scores_along([4, 5], 7, -np.inf))
    assert (found.words, found.complete) == (("maybe",), False)


def test_minus_infinity_forbids_a_word():
    scores = spell(("no",))
    scores[:, 2] = -np.inf
    found = Decoder(word_loop(), WORDS).decode(scores)
    assert found.complete and found.words and "no" not in found.words


def test_what_cannot_be_searched_is_refused_by_name(tmp_path):
    scores, graph = spell(("no",)), word_loop()
    for shape, told in (((5, 6), r"'utt7'.*6 columns.*up to 6"), ((5,), r"'utt7': expected \[T, P\], got")):
        refuses(ShapeError, told, decode, {"utt7": np.zeros(shape)}, graph, WORDS, num_workers=1)
    wrong = scores.copy()
    wrong[1, 1] = np.nan
    refuses(DataError, r"'utt7'.*NaN", decode, {"utt7": wrong, "utt8": scores}, graph, WORDS, num_workers=2)
    refuses(GraphError, r"word id 3.*only 2", Decoder, graph, WORDS[:2])
    (tmp_path / "bad.fst").write_bytes(b"no graph")
    for name in ("bad", "absent"):
        refuses(GraphError, rf"{name}\.fst", Decoder, tmp_path / f"{name}.fst", WORDS)
    for options in ({"max_active": 1}, {"beam": 0.0}, {"beam": float("nan")}):
        refuses(ConfigError, next(iter(options)), DecoderConfig, **options)
    refuses(GraphError, "expected a DecodingGraph", lattices, {"utt7": scores}, graph, WORDS, num_workers=1)
