"""A training that breaks off, as a crash would break it."""

import io
from typing import Any

from fsachain.train.reporting import LineProgress


class Interruption(Exception):
    """Stands for a crash."""


class BreakAfter(LineProgress):
    """Breaks the training off after some batches."""

    def __init__(self, batches: int) -> None:
        super().__init__(io.StringIO())
        self.left = batches

    def batch(self, sums: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise Interruption
