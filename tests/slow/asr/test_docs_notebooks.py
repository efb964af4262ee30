"""The notebooks of docs run, and hold the outputs that the site shows."""

import json
import re

import pytest

from tools.notebooks import FOLDER, execute, notebooks, page_of, python_of

NOTEBOOKS = {"loss_from_graph.ipynb", "recordings_to_textgrids.ipynb"}


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(notebook):
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    return "\n".join(output["text"] for output in outputs if output["output_type"] == "stream")


def read(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def test_both_notebooks_are_there():
    assert {path.name for path in notebooks()} == NOTEBOOKS


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
def test_stored_outputs_belong_to_the_cells_and_stand_on_the_page(name):
    notebook = read(name)
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    page = page_of(FOLDER / name)
    for cell in cells:
        assert "".join(cell["source"]) in page
    assert printed(notebook).splitlines()[0] in page


def test_the_loss_notebook_trains_towards_zero(tmp_path):
    notebook = read("loss_from_graph.ipynb")
    execute(notebook, tmp_path)
    objf = [float(value) for value in re.findall(r"objf (-?[0-9.]+) per frame", printed(notebook))]
    assert len(objf) == 5 and objf == sorted(objf) and objf[-1] > -0.2 > objf[0]
    shown = [
        output["data"] for cell in code_cells(notebook) for output in cell["outputs"] if "data" in output
    ]
    assert sum("image/png" in data for data in shown) == 2


def test_the_alignment_notebook_finds_the_wrong_transcript(tmp_path):
    notebook = read("recordings_to_textgrids.ipynb")
    execute(notebook, tmp_path)
    text = printed(notebook)
    wrong = re.search(r"recordings; (\S+) says", text)[1]
    other = re.search(rf"{wrong}: .*something that the text lacks", text)
    assert other, text
    assert "29 recordings in" in text  # only one was corrected by hand
    assert (tmp_path / "again" / f"{wrong}.TextGrid").is_file()


def test_a_line_that_begins_with_an_exclamation_mark_is_a_command():
    assert python_of("x = 1\n!ls") == "x = 1\n_run_shell('ls')"
