"""`fsachain report` in a headless Chromium: from the disk, without a request, with tables that sort and audio that plays.

The browser is the one that FSACHAIN_BROWSER names, or Chromium or Chrome on the path, or the one that
`python -m playwright install --only-shell chromium` brings.
"""

import os
import shutil
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import report_inputs
import tolerances
from playwright import sync_api as playwright

from fsachain.asr.report.collect import Layout
from fsachain.asr.report.page import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chromium-headless-shell")
WIDTHS = {"phone": 390, "desktop": 1280}
HEADS = "#stages thead th"
BEYOND = """() => Array.from(document.querySelectorAll("table, img"))
    .filter((one) => one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right + 1)
    .map((one) => one.outerHTML.slice(0, 200))"""  # what is cut, or has to be scrolled sideways


@dataclass
class Visit:
    """A page and what it was heard to do: messages on the console, errors, dialogs, requests that leave the machine."""

    page: Any
    noise: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        own = driver.chromium.executable_path
        named = os.environ.get("FSACHAIN_BROWSER")
        found = named or next(filter(None, map(shutil.which, NAMES)), own if Path(own).exists() else None)
        if found is None:
            pytest.skip(
                "no browser: install Chromium, or run `python -m playwright install --only-shell chromium`, or set "
                "FSACHAIN_BROWSER"
            )
        # The pages are this test's own, and in containers, where root runs tests, Chromium has no sandbox.
        launched = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    made = {}
    for kind, names in (("plain", report_inputs.Names()), ("hostile", report_inputs.HOSTILE)):
        exp = report_inputs.write_experiment(tmp_path_factory.mktemp(kind) / "exp", names)
        made[kind] = exp / "report.html"
        write_report(Layout.find(exp), made[kind], report_inputs.look(names), num_pictured=1)
    half = report_inputs.write_experiment(tmp_path_factory.mktemp("half") / "exp")
    shutil.rmtree(half / "decode")
    log = half / "model" / "train.jsonl"
    log.write_bytes(log.read_bytes()[:-150])
    made["half"] = half / "report.html"
    write_report(Layout.find(half), made["half"])
    return made


def visit(browser, path, **options):
    page = browser.new_page(**{"viewport": {"width": WIDTHS["desktop"], "height": 900}, **options})
    visited = Visit(page)
    page.on("console", lambda message: visited.noise.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: visited.noise.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (visited.noise.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: _note_request(visited, request.url))
    page.goto(path.as_uri(), wait_until="load")
    return visited


def _note_request(visited, url):
    if not url.startswith(("file:", "data:")):
        visited.noise.append(f"request: {url}")


@pytest.fixture
def plain(browser, reports):
    visited = visit(browser, reports["plain"])
    yield visited
    visited.page.close()


def column(page, place):
    return page.locator(f"#stages tbody tr > :nth-child({place + 1})").all_inner_texts()


@pytest.mark.parametrize("kind", ["plain", "hostile", "half"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_silently_and_fits_the_screen(browser, reports, kind, width, scheme):
    size = {"width": WIDTHS[width], "height": 800}
    visited = visit(browser, reports[kind], viewport=size, color_scheme=scheme)
    page = visited.page
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    page.mouse.move(200, 300)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]
    assert page.evaluate(BEYOND) == []
    images = page.locator("img")
    # It fails for one that is no picture.
    images.evaluate_all("all => Promise.all(all.map(one => one.decode()))")
    assert images.count() == {"plain": 6, "hostile": 6, "half": 1}[kind]
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shades = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (max(shades) < 64) == (scheme == "dark")
    assert visited.noise == []
    page.close()


def test_table_sorts_by_numbers_and_by_words_and_back(plain):
    page = plain.page
    assert column(page, 0) == ["train", "decode", "align"]
    time_head = page.locator(HEADS, has_text="time").first
    time_head.locator("button").click()
    assert column(page, 3) == ["1.0 s", "6.0 s", "1 min 30 s"]  # by the number, not by the text
    assert time_head.get_attribute("aria-sort") == "ascending"
    time_head.locator("button").click()
    assert column(page, 0) == ["decode", "train", "align"]
    assert time_head.get_attribute("aria-sort") == "descending"
    stage_head = page.locator(HEADS).first
    stage_head.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, 0) == ["align", "decode", "train"]
    assert stage_head.get_attribute("aria-sort") == "ascending"
    assert time_head.get_attribute("aria-sort") is None
    assert plain.noise == []


@pytest.mark.parametrize("kind", ["plain", "hostile"])
def test_every_recording_is_understood_and_plays(browser, reports, kind):
    visited = visit(browser, reports[kind])
    page = visited.page
    recordings = page.locator("audio")
    assert recordings.count() == 3
    for k in range(3):
        recording = recordings.nth(k)
        page.wait_for_function("one => one.readyState >= 1", arg=recording.element_handle())
        duration = recording.evaluate("one => one.duration")
        assert duration == pytest.approx(report_inputs.SECONDS, abs=tolerances.DURATION_SECONDS)
        recording.evaluate("one => one.play()")
        page.wait_for_function("one => one.currentTime > 0.1", arg=recording.element_handle())
    assert recordings.nth(0).evaluate("one => one.paused")  # one at a time is heard
    assert visited.noise == []
    page.close()


def test_click_on_a_word_plays_that_word_and_stops_behind_it(plain):
    page = plain.page
    article = page.locator("article.utterance").first
    article.locator("details").first.evaluate("one => { one.open = true; }")
    button = article.locator("button.play").nth(2)  # from 0.6 s to 0.8 s
    button.click()
    audio = article.locator("audio")
    page.wait_for_function("one => one.currentTime >= 0.8 && one.paused", arg=audio.element_handle())
    assert audio.evaluate("one => one.played.start(0)") == pytest.approx(0.6, abs=tolerances.DURATION_SECONDS)
    assert audio.evaluate("one => one.currentTime") < report_inputs.SECONDS


@pytest.fixture
def asked():
    """The address of a server on this machine, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


def test_policy_of_the_page_stops_what_is_put_into_it(plain, browser, asked, tmp_path):
    """If some name did become markup, it could neither run nor ask for anything; a page without the policy does both."""
    address, paths = asked
    (tmp_path / "open.html").write_text("<!doctype html><title>open</title><body>")
    without = visit(browser, tmp_path / "open.html")
    for page in (plain.page, without.page):
        page.evaluate(
            """async (address) => {
                const script = document.createElement("script");
                script.textContent = "window.ran = true";
                document.body.append(script);
                document.body.insertAdjacentHTML("beforeend", "<b onclick='window.clicked = true' id='b'>x</b>");
                document.getElementById("b").click();
                const image = document.createElement("img");
                const settled = new Promise((resolve) => { image.onload = image.onerror = resolve; });
                image.src = address + "/" + encodeURIComponent(document.title);
                document.body.append(image);
                await settled;
            }""",
            address,
        )
    assert [page.evaluate("[window.ran, window.clicked]") for page in (plain.page, without.page)] == [
        [None, None],
        [True, True],
    ]
    assert paths == ["/open"]
    without.page.close()
