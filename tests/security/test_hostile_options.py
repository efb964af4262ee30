"""YAML and JSON: plain data alone, of bounded size and depth, read in bounded time."""

import os

import pytest

from fsachain.errors import ConfigError, DataError
from fsachain.files import parse_json
from fsachain.train.config import MAX_BYTES, load_yaml
from fsachain.train.log import JsonLinesLog

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
)
ATTACKS = {
    "aliases that stand for billions": (LAUGHS, r"bad\.yaml:2: the alias \*a"),
    "an alias to itself": ("a: &a [*a]\n", "the alias"),
    "a merge": ("a: &a {b: 1}\nc: {<<: *a}\n", "the alias"),
    "lists without end": ("a: " + "[" * 5000, "nested deeper"),
    "tables without end": ("".join(" " * n + "a:\n" for n in range(200)), "nested deeper"),
    "an object of Python": (
        "a: !!python/object/apply:os.system [true]\n",
        "could not determine a constructor",
    ),
    "a name of Python": ("a: !!python/name:os.system\n", "could not determine a constructor"),
    "a number of many digits": ("a: " + "9" * 5000, "cannot read the options"),
    "a day that is none": ("a: 2020-99-99\n", "cannot read the options"),
    "a key twice": ("train: {seed: 1}\ntrain: {seed: 2}\n", r"bad\.yaml:2: the key 'train' occurs twice"),
    "a key twice inside": ("train: {seed: 1, seed: 2}\n", "the key 'seed' occurs twice"),
    "a list for a key": ("? [a]\n: 1\n", "cannot read the options"),
    "two documents": ("a: 1\n---\nb: 2\n", "cannot read the options"),
    "no UTF-8": ("\udcff", "cannot read the options"),
    "a zero byte": ("a: \0\n", "cannot read the options"),
    "more than a configuration": ("# " + "x" * MAX_BYTES, f"more than {MAX_BYTES} bytes"),
    "a list": ("- 1\n", "expected a table"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_configuration_is_refused_by_name(attack, tmp_path):
    text, message = ATTACKS[attack]
    (tmp_path / "bad.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        load_yaml(tmp_path / "bad.yaml")


def test_a_folder_is_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the options"):
        load_yaml(tmp_path)


JSON = {
    "nested without end": b"[" * 1_000_000,
    "a number of many digits": b"9" * 10_000,
    "no UTF-8": b'"\xff"',
    "cut short": b'{"a": ',
    "nothing": b"",
}


@pytest.mark.parametrize("attack", JSON)
def test_hostile_json_is_refused_by_name(attack):
    with pytest.raises(DataError, match=r"^some file: "):
        parse_json(JSON[attack], "some file")


def test_long_json_is_refused_unread(monkeypatch):
    monkeypatch.setattr("fsachain.files.MAX_JSON_BYTES", 10)
    with pytest.raises(DataError, match="11 bytes of JSON; expected at most 10"):
        parse_json(b'"123456789"', "some file")


def test_a_log_with_hostile_lines_is_repaired(tmp_path):
    log = JsonLinesLog(tmp_path / "train.jsonl")
    log.write("start")
    with log.path.open("ab") as file:
        file.write(b"[" * 100_000 + b"\n\xff\xfe\n" + b"9" * 10_000 + b"\n[1]\n")
    assert log.rewind(bool) == 4
    assert log.path.read_text().count("\n") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes in folders")
def test_the_names_of_keys_are_shown_as_text(tmp_path):
    (tmp_path / "bad.yaml").write_text('"\\e[2J": 1\n"\\e[2J": 2\n')
    with pytest.raises(ConfigError) as caught:
        load_yaml(tmp_path / "bad.yaml")
    assert "\x1b" not in str(caught.value)
