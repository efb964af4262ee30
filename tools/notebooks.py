"""Execute the notebooks of docs/notebooks and write them as pages of the site.

    python -m tools.notebooks            # execute every notebook and store what its cells print and show

Cells run as in Jupyter, each notebook in one namespace and in an empty folder. A line that begins with `!` is a command.
Jupyter itself is not needed. tools/docs_site.py makes the pages, tests/slow/test_notebooks.py executes the notebooks.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
# What a cell shows, in the order in which the site prefers it, and how an object makes it.
FORMATS = {"image/png": "_repr_png_", "text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}

Cell = dict[str, Any]


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def run_shell(command: str) -> None:
    """Run one command as Jupyter runs a line that begins with `!`, and print its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    python_path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": python_path, "COLUMNS": "100"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    print(done.stdout + done.stderr, end="")
    if done.returncode not in (0, 3):  # 3: done without some utterances, which are listed
        raise RuntimeError(f"status {done.returncode}: {command}\n{done.stderr}")


def python_of(source: str) -> str:
    """Return a cell as plain Python."""
    lines = []
    for line in source.splitlines():
        lines.append(f"_run_shell({line[1:]!r})" if line.startswith("!") else line)
    return "\n".join(lines)


def shown(value: Any) -> dict[str, str]:
    """Return what Jupyter would show of a value, by media type."""
    data = {"text/plain": repr(value)}
    for media, method in FORMATS.items():
        content = getattr(value, method)() if hasattr(value, method) else None
        if content:
            data[media] = base64.b64encode(content).decode() if isinstance(content, bytes) else content
            break
    return data


def execute_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell and return its outputs in the notebook's format."""
    body = ast.parse(python_of(source)).body
    last = body.pop().value if body and isinstance(body[-1], ast.Expr) else None
    if isinstance(last, ast.Call) and isinstance(last.func, ast.Name) and last.func.id == "_run_shell":
        body.append(ast.Expr(last))
        last = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.fix_missing_locations(ast.Module(body, [])), "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None and not source.rstrip().endswith(";"):
        outputs.append({"output_type": "display_data", "metadata": {}, "data": shown(value)})
    return outputs


def execute(notebook: dict[str, Any], folder: Path) -> None:
    """Run the cells in `folder` and store their outputs in the notebook."""
    names: dict[str, Any] = {"_run_shell": run_shell}
    before = Path.cwd()
    sys.path.insert(0, str(ROOT))
    os.chdir(folder)
    try:
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(cells, start=1):
            cell["outputs"] = execute_cell("".join(cell["source"]), names)
            cell["execution_count"] = number
    finally:
        os.chdir(before)
        sys.path.remove(str(ROOT))


def page_of(path: Path) -> str:
    """Return the Markdown page of a notebook: its text, code and stored outputs."""
    parts = list(_parts(json.loads(path.read_text(encoding="utf-8"))))
    title = parts[0].splitlines()[0]
    note = f"This page is the notebook `docs/notebooks/{path.name}`. Open it in Jupyter to change and run it."
    return "\n\n".join([title, note, parts[0].removeprefix(title).strip(), *parts[1:]]) + "\n"


def _parts(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                yield f"```text\n{''.join(output['text']).rstrip()}\n```"
                continue
            data = output["data"]
            if "image/png" in data:
                yield f"![What the cell shows](data:image/png;base64,{data['image/png'].strip()})"
            elif "text/html" in data:
                yield data["text/html"]
            elif "image/svg+xml" in data:
                encoded = base64.b64encode(data["image/svg+xml"].encode()).decode()
                yield f"![What the cell shows](data:image/svg+xml;base64,{encoded})"
            else:
                yield f"```text\n{data['text/plain']}\n```"


def main() -> None:
    for path in notebooks():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
