"""What `tools/release.py` checks of a release, on the repository as it is."""

import subprocess

import pytest

from tools import release, versions

CAN_BE_CHECKED_NOW = ("versions", "classifiers", "links", "packages")


@pytest.mark.parametrize("name", CAN_BE_CHECKED_NOW)
def test_a_check_finds_nothing_wrong(name):
    assert list(release.CHECKS[name]()) == []


def test_a_version_that_stands_elsewhere_is_found(monkeypatch):
    monkeypatch.setattr(release, "version", lambda: "9.9")
    assert any("CITATION.cff" in line for line in release.check_versions())
    assert any("expected the changes of 9.9" in line for line in release.check_changelog())


def test_a_dead_link_is_found(monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("[a](there.md) [b](page.md#x) [c](https://d.e) `[f](code.md)`")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "tracked", lambda: ["page.md"])
    assert list(release.check_links()) == ["page.md: no there.md"]


def test_what_is_not_committed_is_found(monkeypatch, tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "new.py").write_text("")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert list(release.check_git()) == ["not committed: ?? new.py"]


def test_the_oldest_versions_are_those_that_setup_cfg_allows():
    found = versions.lowest()
    assert {one.partition("==")[0] for one in found} == {
        "filelock",
        "numpy",
        "scipy",
        "numba",
        "torch",
        "pynini",
    }
    assert "torch==2.4" in found


def test_lines_of_the_table_replace_those_of_the_same_row(monkeypatch, tmp_path):
    page = tmp_path / "versions.md"
    page.write_text(f"before\n{versions.BEGIN}{versions.table([])}{versions.END}after\n")
    monkeypatch.setattr(versions, "PAGE", page)
    line = dict.fromkeys(versions.COLUMNS, "1") | {"row": "oldest", "suite": "losses"}
    versions.write_page([line, {**line, "row": "newest"}])
    versions.write_page([{**line, "passed": "2"}])
    text = page.read_text()
    assert text.count("oldest") == text.count("newest") == 1 and "| 2 |" in text
    assert text.startswith("before\n") and text.endswith("after\n")
