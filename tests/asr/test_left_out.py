"""A step that would leave out more than the allowed share of its utterances stops, and says why and what helps."""

import pytest

from fsachain.asr.cli.config import Experiment
from fsachain.asr.cli.resources import Resources
from fsachain.asr.data.kaldi_dir import DataDir
from fsachain.asr.data.utterance import KINDS, Fault, check_left_out
from fsachain.errors import DataError

GRAPHS = "--lang lang --den den"


def faults_of(kind, *names):
    return [Fault(name, f"utterance {name!r}: is wrong", kind) for name in names]


@pytest.mark.parametrize(
    ("left_out", "total", "allowed", "stops"),
    [
        (1, 2, 0.5, False),
        (2, 3, 0.5, True),
        (1009, 1010, 0.5, True),
        (9, 10, 0.9, False),
        (1, 100, 0.0, True),
        (0, 5, 0.0, False),
    ],
)
def test_more_than_the_allowed_share_is_an_error(left_out, total, allowed, stops):
    faults = faults_of("unknown word", *(f"u{n}" for n in range(left_out)))
    if stops:
        with pytest.raises(
            DataError, match=f"here: {left_out:,} of {total:,} utterances .* would be left out"
        ):
            check_left_out(faults, total, "here", allowed)
    else:
        check_left_out(faults, total, "here", allowed)


def test_the_message_has_the_commonest_reasons_the_first_of_them_and_what_helps():
    faults = [
        *faults_of("empty text", "a"),
        *faults_of("sampling rate", "b", "c", "d"),
        *faults_of("too short", "e"),
    ]
    with pytest.raises(DataError) as refused:
        check_left_out(faults, 6, "train", 0.5)
    assert str(refused.value) == (
        "train: 5 of 6 utterances (83.3 %) would be left out, more than the 50 % that --allow-left-out (in Python "
        "allow_left_out) allows: 3 x sampling rate, 1 x empty text, 1 x too short; the first: utterance 'b': is wrong; "
        "features.sample_rate is the rate that is expected; resample the recordings, or change it"
    )


def test_an_utterance_with_several_faults_counts_once():
    check_left_out([fault for kind in KINDS for fault in faults_of(kind, "a")], 2, "here", 0.5)


def break_words(folder):
    """Three of five transcripts have a word that the lexicon lacks."""
    text = folder / "data" / "text"
    text.write_text(
        text.read_text()
        .replace("u3 no no", "u3 no maybe")
        .replace("u4 yes", "u4 maybe")
        .replace("u5 yes", "u5 maybe")
    )


def break_recordings(folder):
    for n in (3, 4, 5):
        (folder / "data" / f"{n}.wav").unlink()


def break_tables(folder):
    """Three of five utterances have no transcript."""
    text = folder / "data" / "text"
    text.write_text("".join(text.read_text().splitlines(keepends=True)[:2]))


def align_two(folder):
    (folder / "phones.ctm").write_text(
        "u1 1 0.0 0.4 Y\nu1 1 0.4 0.2 EH\nu1 1 0.6 0.4 S\nu2 1 0.0 0.5 N\nu2 1 0.5 0.5 OW\n"
    )


STEPS = {
    f"phone-lm data out {GRAPHS[:11]}": (break_words, "3 x unknown word"),
    "spell data out": (break_tables, "3 x no transcript"),
    f"num-graphs data out {GRAPHS}": (break_words, "3 x unknown word"),
    f"num-tables data out {GRAPHS}": (break_words, "3 x unknown word"),
    f"num-graphs data out2 {GRAPHS}": (break_tables, "3 x no transcript"),
    f"supervise data phones.ctm out {GRAPHS} --config small.yaml": (align_two, "3 x no alignment"),
    "decode exp data out": (break_recordings, "3 x missing file"),
    "align exp data out": (break_words, "3 x unknown word"),
    f"train data num.npz out {GRAPHS} --config small.yaml": (break_recordings, "3 x missing file"),
    f"train data num.npz out2 {GRAPHS} --config small.yaml": (break_tables, "3 x no transcript"),
    f"train data num.npz out3 {GRAPHS} --config small.yaml --stream": (break_recordings, "3 x missing file"),
    f"suspicious exp data out {GRAPHS}": (break_words, "3 x unknown word"),
}


@pytest.mark.parametrize("line", STEPS)
def test_every_step_stops_where_more_than_half_would_be_left_out_and_goes_on_if_told_to(
    fsachain, trained, line
):
    break_it, reason = STEPS[line]
    break_it(trained)
    error = fsachain.ends(1, line).err.splitlines()[-1]
    assert error.startswith("error: ") and "in Python" not in error
    for told in (
        "3 of 5 utterances (60 %) would be left out, more than the 50 % that --allow-left-out allows",
        reason,
    ):
        assert told in error
    went_on = fsachain.ends(3, f"{line} --allow-left-out 0.6")
    assert "3 utterances left out" in went_on.err


def test_python_has_the_same_share(recorded):
    break_recordings(recorded)
    data = DataDir.read(recorded / "data")
    config = Experiment.read(recorded / "small.yaml").features
    with pytest.raises(DataError, match=r"3 of 5 utterances \(60 %\) .*\(in Python allow_left_out\)"):
        Resources(bad_data="exclude").load(data, config)
    usable, _ = Resources(bad_data="exclude", allow_left_out=0.6).load(data, config)
    assert len(usable) == 2
