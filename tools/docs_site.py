"""A hook of MkDocs: the READMEs and results of the repository become pages of the site, and links between all of them work.

In the repository `docs/losses.md` links to `../recipes/README.md`, and `README.md` to `docs/losses.md`. The site has what is
in `docs` at its top, and the other pages in the folders that they have in the repository; the README is its first page.
A link to a file that is not a page, such as a module, becomes its name. Notebooks become pages, with their stored outputs.
Pages in UNSEARCHED do not turn up in searches. The build fails if a picture is too large, or if no page has the command that
makes it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.notebooks import notebooks, page_of

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "recipes/README.md",
    "recipes/RESULTS.md",
    "kernels/README.md",
    "benchmarks/*.md",
    "recipes/*/*.md",
)
UNSEARCHED = ("CHANGELOG.md", "developers/history.md")
LARGEST_PICTURE = 150_000  # bytes: the README's first screen loads two
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")  # of pictures too, which have a ! before it


def pages_outside() -> Iterator[str]:
    for pattern in OUTSIDE:
        yield from (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern)))


def place_of(path: str) -> str:
    if path == "README.md":
        return "index.md"
    return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))


def source_of(place: str) -> str:
    if place == "index.md":
        return "README.md"
    return place if (ROOT / place).is_file() and not (ROOT / "docs" / place).is_file() else f"docs/{place}"


def check_pictures() -> None:
    """Raise PluginError if a picture is larger than LARGEST_PICTURE, or if no page has the command that makes it."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    commands = "\n".join(re.findall(r"^```(?:python|sh)\n.*?^```|^    \S.*", text, re.DOTALL | re.MULTILINE))
    for picture in sorted((ROOT / "docs" / "images").iterdir()):
        size = picture.stat().st_size
        if size > LARGEST_PICTURE:
            raise PluginError(f"{picture}: {size} bytes; expected at most {LARGEST_PICTURE}: save it smaller")
        if picture.name not in commands:
            raise PluginError(f"{picture}: no page of docs has the command that makes it")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    check_pictures()
    for path in notebooks():
        place = place_of(path.relative_to(ROOT).as_posix())
        files.append(File.generated(config, place, content=page_of(path)))
    for path in pages_outside():
        files.append(
            File.generated(config, place_of(path), content=(ROOT / path).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    place = page.file.src_uri
    if place in UNSEARCHED:
        page.meta["search"] = {"exclude": True}
    source = PurePosixPath(source_of(place))

    def moved(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("data:"):
            return match[0]
        path = posixpath.normpath((source.parent / target).as_posix())
        if files.get_file_from_path(place_of(path)) is not None:
            relative = posixpath.relpath(place_of(path), PurePosixPath(place).parent.as_posix())
            return f"[{text}]({relative}{anchor})"
        # What neither site nor repository has stays a link, which the strict build refuses.
        return text if (ROOT / path).exists() else match[0]

    return _LINK.sub(moved, markdown)
