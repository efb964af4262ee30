"""A training that breaks off, as a crash would break it."""

import io

from fsachain.train.reporting import ShownProgress


class Interruption(Exception):
    """Stands for a crash."""


class BreakAfter(ShownProgress):
    """Breaks the training off after some batches."""

    def __init__(self, batches):
        super().__init__(io.StringIO())
        self.left = batches

    def batch(self, sums):
        self.left -= 1
        if self.left < 0:
            raise Interruption
