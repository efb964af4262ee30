"""Every program in README.md and docs/ runs, as it is printed there.

The programs of a page run in order, in one namespace and in an empty folder. What a page says is the reader's own comes from
docs_inputs.py. A program that cannot run here has a comment `<!-- not run: why -->` on the line above it.
"""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

import docs_inputs
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# The tutorial has commands between its programs: test_tutorial.py runs both.
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```python[^\n]*\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Program:
    """A program, the line that it begins in, and why it is not run, if it is not."""

    code: str
    line: int
    reason: str | None


def programs(page):
    text = page.read_text(encoding="utf-8")
    return [
        Program(match["code"], text.count("\n", 0, match.start("code")) + 1, match["reason"])
        for match in _BLOCK.finditer(text)
    ]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if programs(page) and page.name != "tutorial.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_programs_of_a_page_run_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = docs_inputs.GIVEN.get(page.name)
    names = {} if given is None else given(tmp_path)
    for program in programs(page):
        blank = "\n" * (program.line - 1)  # so that a traceback has the line of the page
        code = compile(blank + program.code, str(page), "exec")
        if program.reason is None:
            exec(code, names)


def test_every_public_name_is_on_one_page_of_the_api():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    found = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    for package in ("fsachain", "fsachain.data", "fsachain.nn", "fsachain.plot"):
        here = [name.rpartition(".")[2] for name in found if name.rpartition(".")[0] == package]
        assert sorted(here) == sorted(importlib.import_module(package).__all__)
