"""A hook of MkDocs: the READMEs and results of the repository become pages of the site, and links between all of them work.

In the repository `docs/losses.md` links to `../recipes/README.md`, and `README.md` to `docs/losses.md`. The site has what is
in `docs` at its top, and the other pages in the folders that they have in the repository; the README is its first page.
A link to a file that is no page, such as a module, becomes its name.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

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
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def pages_outside() -> Iterator[str]:
    for pattern in OUTSIDE:
        yield from (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern)))


def place_of(path: str) -> str:
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/")


def source_of(place: str) -> str:
    if place == "index.md":
        return "README.md"
    return place if (ROOT / place).is_file() and not (ROOT / "docs" / place).is_file() else f"docs/{place}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in pages_outside():
        files.append(
            File.generated(config, place_of(path), content=(ROOT / path).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    place = page.file.src_uri
    source = PurePosixPath(source_of(place))

    def moved(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target:
            return match[0]
        path = posixpath.normpath((source.parent / target).as_posix())
        if files.get_file_from_path(place_of(path)) is not None:
            relative = posixpath.relpath(place_of(path), PurePosixPath(place).parent.as_posix())
            return f"[{text}]({relative}{anchor})"
        # What neither site nor repository has stays a link, which the strict build refuses.
        return text if (ROOT / path).exists() else match[0]

    return _LINK.sub(moved, markdown)
