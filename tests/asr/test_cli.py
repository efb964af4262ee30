"""The command `fsachain`: steps document themselves, mistakes cost one line, and the files fit together."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_fixtures import TEXT, assert_one_line, save_untrained
from hypothesis import given
from hypothesis import strategies as st

from fsachain.asr.cli import EXIT_INTERRUPTED, EXIT_USER_ERROR
from fsachain.asr.cli.app import COMMANDS, app
from fsachain.asr.cli.resources import Resources
from fsachain.asr.data.features import FeatureConfig
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.train.config import changes


def every_command():
    """Name and click command of everything that does work; groups are opened."""
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name][1]
        for inner in getattr(command, "commands", {name: command}).values():
            yield name, inner


def test_every_command_says_what_comes_in_and_what_goes_out() -> None:
    """And the table, from which `fsachain --help` is printed, says what the commands say."""
    found = list(every_command())
    assert {name for name, _ in found} == set(COMMANDS)
    for _, command in found:
        assert "In: " in command.help and "Out: " in command.help, command.name


LOOK_ALONE = {"validate", "plot", "report", "info", "align-long"}  # leave nothing out, or tell it themselves


def test_commands_on_data_and_models_keep_the_same_rules() -> None:
    """What reads utterances has `--bad-data`, what has a model needs no `--lang`, which is read before `--config`."""
    for name, command in every_command():
        options = {option.name: option for option in command.params}
        if options.keys() & {"data", "text", "patterns", "table"} and name not in LOOK_ALONE:
            assert "bad_data" in options, command.name
        if "lang" in options and options.keys() & {"model"} and name not in {"kaldi", "num-fsts", "plot"}:
            assert not options["lang"].required, command.name
        if {"lang", "experiment"} <= options.keys():
            assert options["lang"].is_eager, command.name


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_help_starts_without_pytorch() -> None:
    loaded = run_python(
        "import sys; sys.argv = ['fsachain', '--help']\nfrom fsachain.asr.cli import main\n"
        "try: main()\nfinally: print({'torch', 'numba', 'scipy'} & set(sys.modules), file=sys.stderr)"
    )
    assert "transcribe" in loaded.stdout and loaded.stderr == "set()\n"


def test_version_needs_nothing_that_the_base_install_lacks():
    done = run_python(
        "import sys; sys.modules['click'] = None\nfrom fsachain.asr.cli import call\ncall(['--version'])"
    )
    assert done.stdout.startswith("fsachain, version ") and not done.stderr


def test_what_a_command_imports_is_not_searched_for_garbage() -> None:
    """Neither meanwhile, where there would be hundreds of searches, nor when the interpreter ends."""
    code = (
        "import atexit, gc, sys; sys.argv = ['fsachain', 'lang', '--help']; found = []\n"
        "gc.callbacks.append(lambda phase, _: found.append(phase))\n"
        "atexit.register(lambda: print(len(found) < 300, gc.isenabled(), len(gc.get_objects()) < 1000))\n"
        "from fsachain.asr.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("True True True\n")


def test_graph_commands_read_each_others_files(fsachain, built: Path) -> None:
    outcome = fsachain.ok("num-graphs data n.npz --lang lang --den den")
    assert "5 numerators" in outcome.out
    assert "5 utterances, 11 words" in fsachain("info n.npz").out
    assert "pdfs: 12" in fsachain("info lang").out  # five phones and silence, two pdfs each
    assert "acceptor: " in fsachain("info den/den.fst").out


@pytest.mark.parametrize("name", ["num-graphs", "num-tables", "phone-lm", "word-lm", "estimate-arpa", "lang"])
def test_transcripts_that_no_graph_can_hold_are_listed_by_every_command(
    fsachain, built: Path, name: str
) -> None:
    """An unknown word, and no word: table of kinds, list, status 3; `--bad-data stop` stops before anything is written."""
    data = built / "data"
    folder = name in ("lang", "num-tables")
    out = built / ("made" if folder else "made.xyz")
    listed = out / "faults.jsonl" if folder else built / "made.faults.jsonl"
    step = f"{name} data {out} --lang lang{' --units words' if name == 'estimate-arpa' else ''}"
    if name == "lang":
        step = f"lang lexicon.txt {out} --set lang.context=tied-biphone --text data"
    (data / "text").write_text(TEXT.replace("u2 no", "u2 no maybe").replace("u5 yes yes", "u5"))
    assert_one_line(fsachain(f"{step} --bad-data stop"), "2 faults, and --bad-data is stop", "'maybe'")
    assert [path for path in built.rglob("made*") if path.is_file() and path != listed] == []
    outcome = fsachain.ends(3, step)
    assert "1  empty text" in outcome.out and "1  unknown word" in outcome.out and "'maybe'" in outcome.out
    found = {fault["id"]: fault["kind"] for fault in map(json.loads, listed.read_text().splitlines())}
    assert found == {"u2": "unknown word", "u5": "empty text"}
    made = out.read_bytes() if out.is_file() else None
    (data / "text").write_text(TEXT.replace("u2 no\n", "").replace("u5 yes yes\n", ""))
    (data / "wav.scp").write_text("".join(f"u{n} {n}.wav\n" for n in (1, 3, 4)))
    fsachain.ok(step)
    assert not listed.exists()
    if name in ("phone-lm", "word-lm", "estimate-arpa"):
        assert out.read_bytes() == made


def test_score_says_how_many_words_are_wrong_by_how_they_are_written_alone(fsachain, tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("u1 n\u00e9 yes no\n")
    (tmp_path / "hyp").write_text("u1 ne\u0301 Yes on\n")
    assert "2 wrong words differ in case or Unicode form" in fsachain.ok("score ref hyp").out
    assert "Unicode" not in fsachain.ok("score ref ref").out


def test_lexica_that_say_one_thing_in_two_ways_are_told(fsachain, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("u1 n\u00e9 yes\nu2 ne\u0301\n")
    assert "in two Unicode forms (NFC, NFD), such as 'n\u00e9'" in fsachain.ok("spell text spelled.txt").out
    (tmp_path / "lexicon.txt").write_text("no N OW\n<sil> sil\n")
    refused = fsachain.ends(1, "lang lexicon.txt lang").err
    assert "'SIL' is not among the phones, which have 'sil'" in refused
    assert "lang.silence" in refused
    assert "beside" not in fsachain.ok("lang lexicon.txt lang --set lang.silence=sil").out
    (tmp_path / "lexicon.txt").write_text("no N OW\n<sil> sil\n<SIL> SIL\n")
    assert "'sil' is a phone beside the silence, 'SIL'" in fsachain.ok("lang lexicon.txt lang").out


def test_recordings_beside_a_training_on_stored_features_are_told(recorded: Path, capsys) -> None:
    data = DataDir.read(recorded / "data")
    Resources().load_usable(data, FeatureConfig(num_mel_bins=8))  # as fitted to a width alone
    assert "5 of 5 utterances have no features in a feats.scp" in capsys.readouterr().out
    Resources().load_usable(data, FeatureConfig(num_mel_bins=8, sample_rate=8000))
    assert "feats.scp" not in capsys.readouterr().out


def test_score_prints_the_word_error_rate(fsachain, tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("a one two\nb three\n")
    (tmp_path / "hyp").write_text("a one\nb three three\n")
    printed = fsachain.ok("score ref hyp").out
    assert "WER 66.67 % [ 2 / 3, 1 ins, 1 del, 0 sub ]" in printed


def test_commands_in_wav_scp_are_refused_unless_asked_for(fsachain, built: Path) -> None:
    """And `info` runs none."""
    ran = built / "ran"
    (built / "data" / "wav.scp").write_text("".join(f"u{n} touch {ran} |\n" for n in range(1, 6)))
    step = "num-graphs data n.npz --lang lang"
    assert fsachain(step).status == EXIT_USER_ERROR
    fsachain.ok(f"{step} --allow-commands")
    assert "5 utterances" in fsachain("info data").out
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "no utterances"), ("u1\n", "the transcript is empty"), ("u1 maybe\n", "'maybe'")],
)
def test_phone_lm_without_a_usable_transcript_says_so(fsachain, built: Path, text: str, reason: str) -> None:
    (built / "data" / "text").write_text(text)
    assert_one_line(fsachain("phone-lm data/text lm.fst --lang lang"), "lm.fst: transcripts", reason)


def test_a_training_that_broke_off_before_it_began_does_not_hold_its_folder(fsachain, recorded: Path) -> None:
    """With a wrong option the first time: the second is no other training."""
    graphs = "--lang lang --den den"
    fsachain.ok(f"num-graphs data n.npz {graphs}")
    step = f"train data n.npz m {graphs} --config small.yaml"
    outcome = fsachain.ends(1, f"{step} --set features.sample_rate=16000")
    assert "5  sampling rate" in outcome.out and "training set: no utterance is left" in outcome.err
    fsachain.ok(step)
    told = "holds a training with other options: network.channels was 8, is 16"
    assert_one_line(fsachain(f"{step} --set network.channels=16"), told)


def test_files_and_folders_of_another_kind_are_refused_by_name(fsachain, built: Path) -> None:
    (built / "empty").write_text("")
    (built / "broken.txt").write_text("yes\n")
    for command, message in {
        "lang broken.txt other": "broken.txt:1: word 'yes' has no phones",
        "den-graph den/den.fst g --lang lang": "den.fst: no phone language model for these phones",
        "den-graph lexicon.txt g --lang lang": "lexicon.txt: not an OpenFst binary file",
        "score empty empty": "empty: no utterances",
    }.items():
        assert_one_line(fsachain(command), message)
    assert fsachain("score no-such-file neither").status == 2
    assert_one_line(fsachain("info den"), "den: expected a language folder", "data directory")
    for content in (b"", b"PK\x03\x04 cut", b"\xd6\xfd\xb2~ of another kind"):
        (built / "n.npz").write_bytes(content)
        assert_one_line(fsachain("info n.npz"), "n.npz: not a numerator archive", "or cut short")


@pytest.fixture
def model(built: Path) -> Path:
    sections = {"features": {"sample_rate": 8000, "num_mel_bins": 8}, "cmvn": {"scope": "none"}}
    return save_untrained(
        built / "model.safetensors", built / "lang", sections | {"network": {"channels": 8}}
    )


@pytest.mark.parametrize("part", ["weight", "experiment", "num_pdfs"])
def test_model_without_one_of_its_parts_is_refused_by_file(fsachain, model: Path, part: str) -> None:
    from fsachain.asr.train.checkpoint import load_tensors, save_tensors

    tensors, header = load_tensors(model)
    if part == "weight":
        del tensors[min(tensors)]
    else:
        del header[part]
    save_tensors(model, tensors, header)
    assert_one_line(fsachain(f"info {model}"), "model.safetensors: the acoustic model is not complete")


def test_messages_speak_of_the_options_of_the_command(fsachain, model: Path) -> None:
    """Whose Python names they are where there is no command."""
    corpus = model.parent
    arpa, graph, words = corpus / "one.arpa", corpus / "phone_lm.fst", corpus / "lang/words.txt"
    arpa.write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-99 <s>\n-1 </s>\n-1 yes\n\n\\end\\\n")
    step = f"decode {model} {corpus}/data {corpus}/out --arpa {arpa}"
    outcome = fsachain(f"{step} --lm-weight -1")
    assert outcome.status == 2 and "'--lm-weight': -1.0 is not in the range" in outcome.err
    outcome = fsachain(f"{step} --grammar {graph} {words}")
    assert_one_line(outcome, f"--arpa {arpa} and --grammar {graph}: expected one language model")


def test_unreadable_notes_of_a_training_are_refused_by_file(fsachain, built: Path) -> None:
    fsachain.ok("num-graphs data n.npz --lang lang")
    out = built / "trained"
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints/epoch-0001-batch-000000.safetensors").touch()
    (out / "experiment.json").write_text("")
    outcome = fsachain("train data n.npz trained --lang lang --den den")
    assert_one_line(outcome, "experiment.json: cannot read the options of the training")


def test_the_configuration_travels_with_the_language_folder(fsachain, built: Path) -> None:
    """`phone-lm` without --config makes the model of the configuration that `lang` was given, and says so."""
    config = built / "bigram.yaml"
    config.write_text("phone_lm: {ngram_order: 2}\n")
    step = "phone-lm data/text"
    named = fsachain(f"{step} named.fst --lang lang --config bigram.yaml")
    assert "bigram.yaml; other than lang/config.yaml: phone_lm.ngram_order was 4, is 2\n" in named.out
    fsachain.ok("lang lexicon.txt lang --config bigram.yaml")
    taken = fsachain(f"{step} taken.fst --lang lang")
    assert "configuration: lang/config.yaml" in taken.out
    assert (built / "taken.fst").read_bytes() == (built / "named.fst").read_bytes()
    assert (built / "taken.fst").read_bytes() != (built / "phone_lm.fst").read_bytes()
    config.write_text("lang: {context: biphone}\n")
    outcome = fsachain(f"{step} refused.fst --lang lang --config bigram.yaml")
    assert_one_line(outcome, "lang.context was 'monophone', is 'biphone'", "bigram.yaml")
    outcome = fsachain(f"{step} set.fst --lang lang --set phone_lm.num_extra_lm_states=3")
    assert "lang/config.yaml; phone_lm.num_extra_lm_states was 1000, is 3\n" in outcome.out
    (built / "lang/config.yaml").unlink()
    assert "configuration: every option has its default" in fsachain(f"{step} plain.fst --lang lang").out
    assert (built / "plain.fst").read_bytes() == (built / "phone_lm.fst").read_bytes()


NUMBERS = st.integers(0, 2)
TABLES = st.dictionaries(st.sampled_from("abc"), NUMBERS | st.dictionaries(st.sampled_from("xy"), NUMBERS))


@given(before=TABLES, now=TABLES)
def test_tables_of_options_differ_where_something_is_named(before: dict, now: dict) -> None:
    told = changes(before, now)
    assert bool(told) == (before != now)
    assert changes({"a": {"b": 1}}, {"a": {"b": 2, "c": None}}) == ["a.b was 1, is 2"]
    assert len(set(told)) == len(told)


def test_help_has_every_command_in_a_group_and_cuts_no_line(fsachain):
    told = " ".join(fsachain("--help").out.split())
    assert re.search("Data and graphs:.*Training:.*Kaldi:.*FSA tools:", told)
    for name, (_, text) in COMMANDS.items():
        assert f"{name} {text}" in told
    for group in ("plot", "kaldi"):
        assert "..." not in fsachain(f"{group} --help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("command", "work", "how"),
    [
        ("lang lexicon.txt lang", "lang.Lexicon.read", "begins anew"),
        ("train data n.npz m --lang lang --den den", "training.train_model", "from the newest checkpoint"),
    ],
)
def test_ctrl_c_says_how_to_go_on(fsachain, built, monkeypatch, command, work, how):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    fsachain.ok("num-graphs data n.npz --lang lang --den den")
    monkeypatch.setattr(f"fsachain.asr.cli.{work}", interrupt)
    told = fsachain.ends(EXIT_INTERRUPTED, command).err
    assert re.search(rf"\ninterrupted; give the same command again: it .*{how}", told)


def test_ctrl_c_while_a_command_is_imported_says_so_too(fsachain, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fsachain.asr.cli.app.import_module", interrupt)
    assert "it goes on from the newest checkpoint" in fsachain("train data n.npz m").err


def test_readme_lists_every_extra_that_a_message_names():
    root = Path(__file__).resolve().parents[2]
    text = "".join(path.read_text() for path in (root / "fsachain").rglob("*.py"))
    install = (root / "README.md").read_text().partition("## Install")[2].partition("\n## ")[0]
    extras = set(re.findall(r'extra="([\w-]+)"', text))
    assert len(extras) > 5
    for extra in extras:
        assert f".[{extra}]" in install, extra
