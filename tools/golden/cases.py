"""Every case with stored values that an acceptor's forward-backward, best path or LF-MMI can be compared with."""

from __future__ import annotations

from pathlib import Path

from tools.golden import kaldi, peers
from tools.golden.rows import Case


def all_cases(shared: Path) -> list[Case]:
    """Kaldi's cases, then those of the other programs; `shared` is the folder that holds golden/ and data/."""
    return kaldi.cases(shared) + peers.cases(shared)
