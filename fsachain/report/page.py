"""Findings as one HTML page: tables, and the templates filled in.

Everything that comes from a file of the experiment passes through Jinja's escaping. In addition a content security policy
forbids every request, every style and every script but the page's own, so that what slips through does not run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fsachain.errors import require
from fsachain.files import write_text
from fsachain.report import contents as tables
from fsachain.report.collect import Findings, Layout, collect, draw, number
from fsachain.report.heard import Heard, Look, add_lattices, add_recordings, add_times, choose

_TEMPLATES = ("page.html", "alignments.html", "parts.html", "style.css", "page.js")

# What HTML forbids even as a character reference: control characters, halves of surrogate pairs, noncharacters.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane * 0x10000 + last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def render(found: Findings, heard: Mapping[str, Sequence[Heard]]) -> str:
    return render_page(
        "page.html",
        found=found,
        heard=heard,
        title=found.layout.exp.resolve().name,
        state=state(found),
        tiles=tiles(found),
        tables=tables.all_tables(found),
    )


def render_page(template: str, *, media: str = "data:", **values: Any) -> str:
    """A template of this folder with our style and script; `media` is where its sound may come from."""
    jinja2 = require("jinja2", extra="report")
    folder = resources.files("fsachain.report") / "templates"
    sources = {name: (folder / name).read_text(encoding="utf-8") for name in _TEMPLATES}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        finalize=_allowed,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": lambda value: tables.duration(value).text,
        "amount": lambda value: tables.amount(value).text,
        "moment": lambda value: tables.moment(value).text,
    }
    style, script = (sources[name].replace("\r\n", "\n") for name in ("style.css", "page.js"))
    policy = [
        "default-src 'none'",
        "img-src data:",
        f"media-src {media}",
        f"style-src '{_hash(style)}'",
        f"script-src '{_hash(script)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    page: str = environment.get_template(template).render(
        style=style, script=script, policy="; ".join(policy), **values
    )
    return page


def _allowed(value: Any) -> Any:
    """Text with forbidden characters as escapes; `Markup` stays `Markup`."""
    if not isinstance(value, str) or not _FORBIDDEN.search(value):
        return value
    return type(value)(_FORBIDDEN.sub(lambda found: ascii(found[0])[1:-1], value))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def state(found: Findings) -> str:
    stages = found.stages.stages if found.stages else ()
    broken = [stage for stage in stages if stage.state in ("failed", "stopped")]
    if broken:
        return f"{broken[-1].name} {broken[-1].state}"
    begun = [stage for stage in stages if stage.state == "begun" and stage.name != "report"]
    if begun and begun[-1].name == "train" and found.training:
        return f"train runs: {found.training.state}"
    if begun:
        return f"{begun[-1].name} runs"
    if any(stage.state == "to come" for stage in stages):
        return "not complete"
    if found.total is not None:
        return "complete"
    return f"training: {found.training.state}" if found.training else "begun"


def tiles(found: Findings) -> list[tuple[str, str, str]]:
    """The main results: (name, number, more)."""
    shown = []
    if found.total is not None:
        total = found.total
        more = f"errors: {total.errors} in {total.num_words:,} words"
        shown.append(("WER, test", tables.per_cent(total.wer).text, more))
    if found.tuned is not None:
        weight, wer = number(found.tuned, "lm_weight"), number(found.tuned, "wer")
        chosen = "" if weight is None else f"LM weight {weight:g}"
        shown.append(("WER, dev", tables.per_cent(wer).text, chosen))
    if found.training is not None:
        training = found.training
        dev = training.final_dev_objf
        if dev is None and training.epochs:
            dev = number(list(training.epochs.values())[-1], "dev", "objf")
        shown.append(("objf, dev", tables.amount(dev, 4).text, "nats per output frame"))
        shown.append(("Epochs", str(len(training.epochs)), training.state))
        if training.parameters:
            shown.append(("Parameters", f"{training.parameters:,}", ""))
    train = next((size for size in found.sizes if size.name == "train"), None)
    if train is not None:
        more = f"{train.utterances:,} utterances"
        shown.append(("Speech, train", tables.duration(train.seconds).text, more))
    return shown


def write_report(
    layout: Layout,
    out: Path,
    look: Look | None = None,
    *,
    num_utterances: int = 10,
    num_pictured: int = 3,
    allow_commands: bool = False,
) -> None:
    """Write the report of an experiment, finished or not, as one HTML file that makes no request.

    What is missing or damaged is said in its section. The file is written atomically. `look` gives the occupancies of
    utterances by id, and for those that have none the reason; without a model there is none. So many utterances of the worst
    and of the best have their recordings, so many of these a spectrogram and a lattice. `allow_commands`: run the shell
    commands in wav.scp that make recordings.
    """
    found = collect(layout)
    draw(found)
    heard = choose(found, num_utterances)
    every = [one for group in heard.values() for one in group]
    pictured = {one.id for group in heard.values() for one in group[:num_pictured]}
    if every:
        add_times(found, every)
        add_recordings(found, every, pictured, allow_commands=allow_commands)
        if look is not None:
            add_lattices(found, every, pictured, look)
    page = render(found, heard)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
