"""The README's first program is run as it is printed there."""

import re
from pathlib import Path

import tolerances

README = Path(__file__).resolve().parent.parent / "README.md"


def test_quick_start_runs_and_prints_what_it_says(capsys):
    program = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    assert len(program[1].splitlines()) <= 30
    names: dict = {}
    exec(compile(program[1], str(README), "exec"), names)
    assert names["loss"].item() > 0.0  # the denominator contains the numerator, so objf is negative
    rows = names["scores"].grad[0].sum(dim=-1)
    assert rows.abs().max() < tolerances.GRADIENT_ROW_SUM
    assert names["scores"].grad.abs().max() > 0.01
    assert "tensor(" in capsys.readouterr().out
