"""Commands for numerators of patterns and graphs, for language models and keywords: they do what their functions do."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import tolerances
from cli_fixtures import TEXT, assert_one_line
from graph_paths import Scorer, assert_same_columns, assert_same_scores, log_add, sample_paths, scores_along
from refusals import refuses

from fsachain import ContextTree, Forgiveness, Fsa, Lexicon, Topology, build_numerator
from fsachain.asr.cli.graphs import load_normalization
from fsachain.asr.cli.lang import load_lang
from fsachain.asr.cli.model import AcousticModel
from fsachain.asr.cli.resources import Resources
from fsachain.asr.data import DataDir
from fsachain.asr.data.utterance import Fault
from fsachain.asr.decode.decoder import decode
from fsachain.asr.decode.suspicious import doubts, with_cheap_star
from fsachain.asr.train.log import read_log
from fsachain.asr.train.source import ForgivingNumerators
from fsachain.errors import DataError, GraphError
from fsachain.graph.algorithms import equivalent
from fsachain.graph.decoding import build_decoding_graph
from fsachain.graph.denominator import ctc_denominator
from fsachain.graph.grammar import grammar_from_arpa, word_loop
from fsachain.graph.numerator import load_numerators, source_of
from fsachain.graph.patterns import OneOf, build_pattern_numerator, optional
from fsachain.graph.spelling import phone_loop
from fsachain.openfst import Transducer, write_fst
from fsachain.table import compile_table

PATTERNS = {"u1": "( 0.7 yes no | 0.3 yes yes no )", "u2": "* no *", "u3": "yes <loop>", "u4": "[ no ] <spell>"}  # fmt: skip


def scores_alike(found: Fsa, expected: Fsa) -> None:
    drawn = {"count": 40, "seed": 3, "max_frames": 40}
    assert_same_scores(found, expected, tolerances.FEW_FLOAT32_TERMS, **drawn)


def test_patterns_become_numerators(fsachain, built):
    lines = [*PATTERNS.items(), ("u5", "yes ( no"), ("u6", "maybe"), ("u7", "")]
    (built / "patterns").write_text("".join(f"{name} {text}\n" for name, text in lines))
    out = built / "num" / "patterns.npz"
    spell = "--part <spell> phone_lm.fst --jobs 2"
    text = fsachain.ends(3, f"num-patterns patterns {out} --lang lang --den den {spell}").out
    assert "4 numerators, " in text and "3 utterances left out" in text
    for reason in ("u5: pattern: expected", "u6: word 'maybe'", "u7: the pattern is empty"):
        assert reason in text
    assert source_of(out) == "graphs"
    language = load_lang(built / "lang")
    normalization = load_normalization(language, built / "den")
    loop = phone_loop(range(1, 7), stop_prob=0.1)  # silence may stand between the words of a gap
    expected = {
        "u1": [OneOf([(0.7, ["yes", "no"]), (0.3, ["yes", "yes", "no"])])],
        "u2": [optional([loop]), "no", optional([loop])],
        "u3": ["yes", loop],
        "u4": [optional(["no"]), Fsa.read(built / "phone_lm.fst")],
    }
    found = load_numerators(out)
    assert list(found) == list(expected)
    for name, pattern in expected.items():
        made = build_pattern_numerator(pattern, language.lexicon, language.tree, normalization=normalization)
        assert found[name].words == made.words
        assert_same_columns(found[name].fsa, made.fsa)


def test_numerators_of_patterns_train_whatever_the_transcripts_say(fsachain, recorded):
    (recorded / "patterns").write_text("".join(f"u{n} * ( 0.5 yes | 0.5 no ) *\n" for n in range(1, 6)))
    (recorded / "data/text").write_text("".join(f"u{n}\n" for n in range(1, 6)))
    fsachain.ok("num-patterns patterns num.npz --lang lang --den den")
    fsachain.ok("train data num.npz exp --lang lang --den den --config small.yaml")


WORD_GRAPH = "0 1 2 2 0.5\n0 1 1 1 1.5\n1 1 2 2 0.7\n1 0.25\n"


def test_word_graphs_come_as_text_openfst_and_addresses(fsachain, built):
    """Word ids of another words.txt; an archive of AT&T text, and an scp file of an OpenFst file and a text."""
    (built / "words.txt").write_text("<eps> 0\nyes 1\nno 2\n")
    (built / "graphs.txt").write_text(f"u1\n{WORD_GRAPH}\nu2\n0 1 1 99\n1\n\nu3\n0 1 9 9\n1\n\n")
    (built / "one.txt").write_text(WORD_GRAPH)
    Fsa.from_text(WORD_GRAPH).write(built / "two.fst")
    (built / "graphs.scp").write_text("u1 one.txt\nu2 two.fst\n")
    lang = "--lang lang --words words.txt"
    text = fsachain.ends(3, f"num-fsts graphs.txt a.npz {lang}").out
    assert "2 numerators" in text and "u3: the grammar has labels" in text
    fsachain.ok(f"num-fsts graphs.scp b.npz {lang}")
    text_form, files = load_numerators(built / "a.npz"), load_numerators(built / "b.npz")
    scores_alike(text_form["u1"].fsa, files["u1"].fsa)
    scores_alike(text_form["u1"].fsa, files["u2"].fsa)
    language = load_lang(built / "lang")
    scores_alike(text_form["u2"].fsa, build_numerator(["yes"], language.lexicon, language.tree).fsa)
    assert text_form["u2"].words == ("yes",)


def test_graphs_over_phones_and_over_pdfs_are_taken_as_such(fsachain, built):
    language = load_lang(built / "lang")
    lexicon, tree = language.lexicon, language.tree
    plain = build_numerator(["yes", "no"], lexicon, tree)
    (built / "pdfs").mkdir()
    plain.fsa.write(built / "pdfs/u1.fst")
    (built / "pdfs.scp").write_text("u1 pdfs/u1.fst\n")
    ids = [lexicon.phone_id(phone) for phone in ["Y", "EH", "S", "N", "OW"]]
    arcs = [f"{n} {n + 1} {phone} {n % 2}" for n, phone in enumerate(ids)]
    (built / "phones.txt").write_text("u1\n" + "\n".join([*arcs, "5"]) + "\n\n")
    graphs = "--lang lang --den den"
    for table, labels in (("pdfs.scp", "pdfs"), ("phones.txt", "phones")):
        fsachain.ok(f"num-fsts {table} {labels}.npz {graphs} --labels {labels}")
    normalization = load_normalization(language, built / "den")
    expected = build_numerator(["yes", "no"], lexicon, tree, normalization=normalization).fsa
    scores_alike(load_numerators(built / "pdfs.npz")["u1"].fsa, expected)
    only = load_numerators(built / "phones.npz")["u1"].fsa
    sequences = [only.pdf[path] for path in sample_paths(only, 20, seed=1)]
    assert_same_scores(only, normalization, tolerances.FEW_FLOAT32_TERMS, sequences)
    (built / "wide.txt").write_text("u1\n0 1 99 99\n1\n\n")
    given = f"num-fsts wide.txt no.npz {graphs} --labels"
    assert_one_line(fsachain(f"{given} pdfs"), "utterance 'u1': has pdf 98; the tree has 12")
    outcome = fsachain(f"{given} transition-ids")
    assert outcome.status == 2 and "--model goes with --labels transition-ids" in outcome.err


def test_graphs_of_kaldi_over_transition_ids_are_numerators(fsachain, shared, tmp_path):
    """graphs.ark of compile-train-graphs is what our builder makes of the same transcripts."""
    case = shared / "golden/kaldi/lm/lm1_tiny"
    fsachain.ok(f"kaldi lang {case}/lexiconp.txt {case} lang")
    model = f"--labels transition-ids --model {case}/0.trans_mdl"
    text = fsachain.ok(f"num-fsts {case}/graphs.ark num.npz --lang lang {model}").out
    language = load_lang(tmp_path / "lang")
    said = dict(line.split(" ", 1) for line in (case / "test_text.txt").read_text().splitlines())
    found = load_numerators(tmp_path / "num.npz")
    assert set(found) == set(said) and text.startswith(f"{len(said)} numerators")
    for name, words in said.items():
        ours = build_numerator(words.split(), language.lexicon, language.tree).fsa
        drawn = {"combine": max, "count": 20, "seed": 2}
        assert_same_scores(found[name].fsa, ours, tolerances.KALDI_SUPERVISION_PATH, **drawn)


def half(name, number):
    """For `collect`: half of even numbers, an error for odd ones; 99 ends the process."""
    if number == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    if number % 2:
        raise GraphError(f"{number} is odd")
    return number // 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order_and_refusals_by_name(jobs):
    items = [(f"n{number}", number) for number in (4, 3, 8, 1, 6)]
    found, faults = Resources(jobs=jobs).collect(half, items, "halves")
    assert list(found.items()) == [("n4", 2), ("n8", 4), ("n6", 3)]
    assert faults == [Fault("n3", "3 is odd"), Fault("n1", "1 is odd")]
    assert Resources(jobs=jobs).collect(half, [], "nothing") == ({}, [])


def test_a_process_that_is_killed_is_one_error():
    items = [("a", 2), ("b", 99), ("c", 4)]
    refuses(DataError, "a worker .* was ended from outside", Resources(jobs=2).collect, half, items, "halves")


def test_a_word_model_is_spelled_out(fsachain, built):
    """With two ways to say a word, whose probabilities are scaled to a distribution."""
    (built / "lexiconp.txt").write_text("yes 1.0 Y EH S\nyes 0.5 Y EH\nno 1.0 N OW\n")
    fsachain.ok("lang lexiconp.txt ways")
    text = fsachain.ok("word-lm data/text words.fst --lang ways").out
    lexicon = load_lang(built / "ways").lexicon
    assert text.startswith("phone language model of ")
    fsa = Fsa.read(built / "words.fst")
    sums = np.bincount(fsa.src, np.exp(fsa.log_prob), fsa.num_states) + np.exp(fsa.final_log_prob)
    assert sums == pytest.approx(1.0, abs=tolerances.FEW_FLOAT32_TERMS)
    fsachain.ok("den-graph words.fst den2 --lang ways")
    assert lexicon.pronunciations_of("yes")[1].prob == 0.5  # the numerators' lexicon stays as it is


@pytest.mark.parametrize("units", ["words", "phones"])
def test_a_smoothed_model_gives_every_sequence_a_probability(fsachain, built, units):
    graphs = f"--lang lang --units {units}"
    fsachain.ok(f"estimate-arpa data/text lm/lm.arpa {graphs} --order 2")
    assert (built / "lm/lm.arpa").read_text().startswith("\\data\\")
    fsachain.ok(f"arpa-lm lm/lm.arpa lm.fst {graphs}")
    fsachain.ok("den-graph lm.fst den2 --lang lang")
    lexicon = load_lang(built / "lang").lexicon
    score = Scorer(Fsa.read(built / "lm.fst"), log_add)
    # "no yes yes"
    unseen = [lexicon.phone_id(phone) - 1 for phone in ["N", "OW", "Y", "EH", "S", "Y", "EH", "S"]]
    assert -40 < score(unseen) < 0
    assert score([unseen[0]] * 2) > -np.inf if units == "phones" else score([unseen[0]] * 2) == -np.inf


@pytest.mark.parametrize(("name", "prob"), [("lexicon.txt", ""), ("lexiconp.txt", "1.0 ")])
def test_text_alone_is_enough(fsachain, tmp_path, name, prob):
    """No dictionary: words are their characters, digits and apostrophes too, from the lexicon to the numerators."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "text").write_text("u1 it's 10\nu2 10 1.5 ist\nu3 été\n")
    (data / "wav.scp").write_text("".join(f"u{n} absent.wav\n" for n in range(1, 4)))
    assert fsachain(f"spell data/text {name}").out.startswith("5 words, 9 characters")
    assert (tmp_path / name).read_text().splitlines()[:2] == [f"it's {prob}i t ' s", f"10 {prob}1 0"]
    fsachain.ok(f"lang {name} lang")
    fsachain.ok("phone-lm data/text lm.fst --lang lang")
    fsachain.ok("den-graph lm.fst den --lang lang")
    assert "\n3 numerators" in fsachain.ok("num-graphs data num.npz --lang lang --den den").out


@pytest.mark.parametrize("topology", ["standard", "minimal"])
def test_units_with_a_blank_go_through_the_usual_commands(fsachain, tmp_path, topology):
    """A lexicon of pieces, no silence: pdf 0 is the blank, and graphs are those of `ctc_denominator`."""
    (tmp_path / "lexicon.txt").write_text("hello he l lo\nhalo ha lo\nloll lo l l\n")
    (tmp_path / "text").write_text("u1 hello halo\nu2 loll\nu3 halo loll hello\n")
    name = "ctc" if topology == "standard" else f"ctc-{topology}"
    (tmp_path / "units.yaml").write_text(
        f"lang: {{silence: null, topology: {name}}}\nphone_lm: {{ngram_order: 2}}\n"
    )
    fsachain.ok("lang lexicon.txt lang --config units.yaml")
    fsachain.ok("phone-lm text lm.fst --lang lang --config units.yaml")
    fsachain.ok("den-graph lm.fst den --lang lang")
    language = load_lang(tmp_path / "lang")
    assert language.tree.num_pdfs == len(language.lexicon.phones) + 1
    expected = ctc_denominator(Fsa.read(tmp_path / "lm.fst"), topology)
    assert equivalent(Fsa.read(tmp_path / "den/den.fst"), expected, semiring="log")


@pytest.mark.parametrize("topology", ["standard", "compact", "selfless", "minimal"])
def test_units_with_a_blank_are_decoded(topology):
    """`loll` has two equal units in a row; with a blank between them every topology reads it so."""
    entries = [("hello", 1, ["he", "l", "lo"]), ("halo", 1, ["ha", "lo"]), ("loll", 1, ["lo", "l", "l"])]
    lexicon = Lexicon.from_entries(entries, silence=None)
    tree = ContextTree.monophone(lexicon.phones, Topology.ctc(topology))
    graph = build_decoding_graph(lexicon, tree, word_loop(lexicon.words, lexicon))
    units = ["lo", None, "l", None, "l", None, None, "ha", "lo", None, "he", "l", "lo"]
    pdfs = [0 if unit is None else lexicon.phone_id(unit) for unit in units]
    scores = scores_along(pdfs, tree.num_pdfs)
    assert decode({"u": scores}, graph, lexicon.words)["u"].words == ("loll", "halo", "hello")


def test_penalties_change_from_epoch_to_epoch_and_edits_are_in_the_log(fsachain, trained):
    changing = "--lang lang --den den --config small.yaml --set train.num_epochs=2"
    changing += " --set forgive.substitution=9,1 --set forgive.deletion=2"
    fsachain.ok(f"num-graphs data forgiving.npz {changing}")
    err = fsachain.ok(f"train data forgiving.npz changing {changing}").err
    epochs = [e["train"] for e in read_log(trained / "changing/train.jsonl") if e["event"] == "epoch"]
    assert [set(e) >= {"substituted", "inserted", "deleted"} for e in epochs] == [True, True]
    assert epochs[0]["inserted"] == epochs[1]["inserted"] == 0.0
    assert epochs[0]["substituted"] < epochs[1]["substituted"] < 1.0
    assert "of 100 words" in err
    graphs = load_numerators(trained / "forgiving.npz")

    def priced(epoch):
        return Forgiveness(9.0 - epoch, deletion=2.0, star="frames")

    numerators = ForgivingNumerators(graphs, 1000, priced)
    name, graph = next(iter(graphs.items()))
    assert graph.forgive == priced(8)
    for epoch in (0, 1, 8):
        wanted = graph.priced(priced(epoch))
        table = numerators.at(epoch)[name]
        assert np.array_equal(table.by_src.log_prob, compile_table(wanted, 1000).by_src.log_prob)
    for files, told in (
        ("num.npz other", "expected numerators in memory that forgive"),
        ("forgiving.npz stream --stream", "train without --stream"),
    ):
        err = fsachain.ends(1, f"train data {files} {changing}").err
        assert "forgive: has penalties that change with the training" in err and told in err


def test_stars_of_frames_train_alike_from_graphs_from_tables_and_from_transcripts(fsachain, trained):
    how = "--lang lang --den den --config small.yaml --set train.num_epochs=1"
    how += " --set forgive.substitution=3 --set forgive.deletion=-1"
    fsachain.ok(f"num-graphs data frames.npz {how}")
    fsachain.ok(f"num-tables data frames {how}")
    found = []
    for number, given in enumerate(("frames.npz m0", "frames m1 --stream", "- m2 --stream")):
        fsachain.ok(f"train data {given} --dev data num.npz {how}")
        (epoch,) = (e for e in read_log(trained / f"m{number}/train.jsonl") if e["event"] == "epoch")
        found.append([epoch["train"]["objf"], epoch["dev"]["objf"]])
        assert ("substituted" in epoch["train"]) == (number == 0)
    assert found[1] == found[0] == found[2]


HALVES = ((0.0, 0.5, "N"), (0.5, 0.52, "OW"))


def test_a_configuration_forgives_and_suspicious_words_are_listed_worst_first(fsachain, trained):
    graphs = "--lang lang --den den"
    numerators = f"num-graphs data forgiving.npz {graphs}"
    fsachain.ok(f"{numerators} --set forgive.insertion=2 --set forgive.deletion=3.5")
    language, normalization = load_lang(trained / "lang"), Fsa.read(trained / "den/normalization.fst")
    for name, found in load_numerators(trained / "forgiving.npz").items():
        options = Forgiveness(insertion=2.0, deletion=3.5, star="frames")
        how = (language.lexicon, language.tree)
        wanted = build_numerator(found.words, *how, normalization=normalization, forgive=options, name=name)
        assert np.array_equal(found.arc_word, wanted.arc_word)
        assert np.array_equal(found.fsa.log_prob, wanted.fsa.log_prob)
    for wrong in ("-1", "-1@0,2@1"):
        outcome = fsachain(f"{numerators} --set forgive.insertion={wrong}")
        assert_one_line(outcome, "forgive.insertion = -1: expected a penalty of at least 0")
    for made in ("tables data tables", "graphs data dev.npz --as-written", "tables data dev --as-written"):
        fsachain.ok(f"num-{made} {graphs} --set forgive.insertion=2")
    train = f"train data forgiving.npz exp2 {graphs} --config small.yaml --dev data"
    for forgiving in ("forgiving.npz", "tables"):
        assert_one_line(fsachain(f"{train} {forgiving}"), "`fsachain num-graphs --as-written`")
    plain, written = (load_numerators(trained / f"{name}.npz") for name in ("num", "dev"))
    assert all(np.array_equal(one.arc_word, plain[name].arc_word) for name, one in written.items())
    for written in ("dev.npz", "dev"):
        fsachain.ok(f"{train} {written} --num-epochs 1")
    out = trained / "doubts"
    suspicious = f"suspicious exp/model.safetensors data doubts {graphs}"
    text = fsachain.ok(suspicious).out
    rows = [line.split() for line in (out / "words.txt").read_text().splitlines()]
    said = {name: words for name, *words in (line.split() for line in TEXT.splitlines())}
    places = [
        (name, str(place), word) for name, words in said.items() for place, word in enumerate(words, start=1)
    ]
    assert sorted((name, place, word) for _, name, place, word in rows) == sorted(places)
    assert [float(row[0]) for row in rows] == sorted(float(row[0]) for row in rows)
    worst = {name: sum(1 - float(p) for p, owner, *_ in rows if owner == name) for name in said}
    utterances = [line.split() for line in (out / "utterances.txt").read_text().splitlines()]
    assert [name for *_, name in utterances] == sorted(worst, key=lambda name: -worst[name])
    assert text.startswith((out / "words.txt").read_text().splitlines()[0])
    model, starred = AcousticModel.load(trained / "exp/model.safetensors"), with_cheap_star(normalization, 12)
    how = {"normalization": starred, "forgive": Forgiveness(4.0, 4.0, 2.0, "frames")}
    made = {n: build_numerator(said[n], language.lexicon, language.tree, name=n, **how) for n in said}
    expected, _ = doubts(model.outputs(model.examples(DataDir.read(trained / "data"))), made, normalization)
    for probability, name, place, _ in rows:
        assert float(probability) == pytest.approx(expected[name].said[int(place) - 1], abs=1e-4)
    (trained / "data" / "text").write_text(TEXT.replace("u2 no", "u2 maybe"))
    assert "word 'maybe'" in fsachain.ends(3, suspicious).out


def test_times_up_to_the_end_of_the_last_output_frame_supervise_slow_copies_and_tie_a_tree(
    fsachain, recorded
):
    """A recording has 100 frames, its 34 output frames end at 102; by a configuration that says nothing of features."""
    times = (f"u{n} 1 {start} {seconds} {phone}\n" for n in range(1, 6) for start, seconds, phone in HALVES)
    (recorded / "phones.ctm").write_text("".join(times))
    speeds = "--set perturbation.speeds=[0.5,1.0]"
    told = fsachain.ok(f"supervise data phones.ctm chunks.npz --lang lang --den den {speeds}").out
    assert "5 utterances supervised" in told
    fsachain.ok("tie-tree data phones.ctm tied --lang lang --num-pdfs 8")


def test_a_keyword_is_looked_for_in_a_data_directory(fsachain, trained):
    keyword = "keyword exp/model.safetensors data --lang lang"
    text = fsachain.ok(f"{keyword} 'yes no' spot --false-alarms-per-hour 0").out
    assert text.startswith("false-reject rate ") and "of 2)" in text and "3 utterances" in text
    rows = [line.split() for line in (trained / "spot/scores.txt").read_text().splitlines()]
    assert {name: mark for name, _, mark in rows} == {"u1": "1", "u2": "0", "u3": "0", "u4": "1", "u5": "0"}
    assert len({score for _, score, _ in rows}) == 5, "each has what it says itself"
    threshold = max(float(score) for _, score, mark in rows if mark == "0")
    missed = sum(float(score) <= threshold for _, score, mark in rows if mark == "1")
    assert f"({missed} of 2)" in text
    for wanted, told in (("yes yes yes", "0 of 5 utterances have the keyword"), ("maybe", "word 'maybe'")):
        assert_one_line(fsachain(f"{keyword} '{wanted}' none"), told)


def test_a_grammar_of_kaldi_decodes_as_its_arpa_file_does(fsachain, trained):
    """G.fst, whose words have ids of its own, against the n-gram that it was made of."""
    lexicon = load_lang(trained / "lang").lexicon
    fsachain.ok("estimate-arpa data/text lm.arpa --lang lang --units words --order 2")
    grammar = Transducer.from_openfst(grammar_from_arpa(trained / "lm.arpa", lexicon))
    size = len(lexicon.words)
    ids = np.array([0, *range(size, 0, -1)], dtype=np.int32)  # their numbers run the other way
    names = "".join(f"{word} {size - n}\n" for n, word in enumerate(lexicon.words))
    (trained / "words.txt").write_text(f"<eps> 0\n{names}")
    theirs = replace(grammar, ilabel=ids[grammar.ilabel], olabel=ids[grammar.olabel])
    write_fst(theirs.to_openfst(), trained / "G.fst")
    decode, pair = "decode exp/model.safetensors data --lang lang", "--grammar G.fst words.txt"
    fsachain.ok(f"{decode} a --arpa lm.arpa")
    fsachain.ok(f"{decode} b {pair}")
    assert (trained / "a/hyp.txt").read_text() == (trained / "b/hyp.txt").read_text()
    assert_one_line(fsachain(f"{decode} c {pair} --arpa lm.arpa"), "expected one language model")
