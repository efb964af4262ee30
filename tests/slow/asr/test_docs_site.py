"""The documentation as a site: it builds without a warning, has every public name, and asks no other machine for a thing."""

import re
from pathlib import Path

import html5lib
import pytest
from mkdocs import config as mkdocs_config
from mkdocs.commands.build import build
from test_report_browser import browser

from tools.docs_site import pages_outside, place_of

__all__ = ["browser"]  # a fixture: Chromium without a window, where there is one

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "{http://www.w3.org/1999/xhtml}"
# What a browser fetches by itself; links that a reader follows may lead elsewhere.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = mkdocs_config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out))
        assert config.strict  # a dead link, a page outside the navigation, an unknown name: the build fails
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()
    return out


def test_every_page_of_docs_and_every_readme_is_there(site):
    places = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    places += [place_of(path) for path in pages_outside()]
    assert "recipes/digits/RESULTS.md" in places
    for place in places:
        html = place.replace("README.md", "index.md").removesuffix(".md") + ".html"
        assert (site / html).is_file(), place


def test_no_page_fetches_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        tree = html5lib.parse(page.read_bytes())
        for tag, attribute in FETCHED.items():
            for element in tree.iter(NAMESPACE + tag):
                fetched = element.get(attribute) or ""
                assert not re.match(r"(https?:)?//", fetched), (page, fetched)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_a_browser_that_reads_and_searches_asks_this_machine_alone(browser, site, serve):
    address = serve(site)
    for start in ((site / "index.html").as_uri(), f"{address}/index.html"):
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.goto(start, wait_until="load")
        page.goto(start.replace("index.html", "api/losses.html"), wait_until="load")
        if start.startswith(address):
            page.keyboard.press("f")
            page.locator("input.md-search__input").fill("normalization")
            # The page builds the index first, on a machine that may be busy.
            page.locator(".md-search-result__item").first.wait_for(timeout=180_000)
        page.close()
        assert asked
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", address))] == []
