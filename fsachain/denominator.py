"""The denominator of LF-MMI: one graph of all phone sequences, shared by every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from fsachain.batch import TableBatch
from fsachain.errors import ConfigError, GraphError
from fsachain.fsa import Floats, Fsa
from fsachain.normalization import normalization_fsa
from fsachain.stationary import stationary_probs
from fsachain.table import TransitionTable, compile_table


class DenominatorGraph:
    """A denominator with its initial probabilities.

    With the defaults it is Kaldi's: a sequence may begin in any state with its stationary probability and end anywhere,
    as if it had been cut from a longer recording. `initial="start", final="fsa"` is the graph as it stands.

    Attributes:
        fsa: the graph.
        num_pdfs: P, the width of the network output.
        table: its `TransitionTable`, with `leaky_log_prob` set wherever the graph has a stationary distribution.
    """

    def __init__(
        self,
        fsa: Fsa,
        num_pdfs: int,
        *,
        initial: Literal["stationary", "start"] = "stationary",
        final: Literal["one", "fsa"] = "one",
    ) -> None:
        """Compile the graph.

        Args:
            fsa: any acceptor, for example from `build_denominator`.
            num_pdfs: P; every pdf of the graph must be below it.
            initial: "stationary" (see `stationary_probs`) or "start": the graph's own start state only.
            final: "one": every state is final with probability one; "fsa": the graph's own final weights.

        Raises:
            GraphError: a pdf out of range, or `initial="stationary"` for a graph in which all mass dies.
            ConfigError: an unknown value of `initial` or `final`.
        """
        if initial not in ("stationary", "start"):
            raise ConfigError(f"initial = {initial!r}; expected 'stationary' or 'start'")
        if final not in ("one", "fsa"):
            raise ConfigError(f"final = {final!r}; expected 'one' or 'fsa'")
        self.fsa = fsa
        self.num_pdfs = int(num_pdfs)
        self._initial_probs = self._stationary_or_none(fsa, initial)
        table = compile_table(fsa, self.num_pdfs, name="denominator")
        if self._initial_probs is not None:
            with np.errstate(divide="ignore"):
                log_init = np.log(self._initial_probs)
            table = replace(table, leaky_log_prob=log_init)
            if initial == "stationary":
                table = replace(table, initial_log_prob=log_init)
        if final == "one":
            table = replace(table, final_log_prob=np.zeros(fsa.num_states))
        self.table: TransitionTable = table

    @staticmethod
    def _stationary_or_none(fsa: Fsa, initial: str) -> Floats | None:
        try:
            return stationary_probs(fsa)
        except GraphError:
            if initial == "stationary":
                raise
            return None

    def __repr__(self) -> str:
        return (
            f"DenominatorGraph({self.fsa.num_states} states, {self.fsa.num_arcs} arcs, {self.num_pdfs} pdfs)"
        )

    @property
    def initial_probs(self) -> Floats:
        """float64 [S], summing to one: the stationary probabilities, `init` of equation (3).

        Raises:
            GraphError: the graph has none (see `stationary_probs`).
        """
        return stationary_probs(self.fsa) if self._initial_probs is None else self._initial_probs

    def batch(self, size: int, names: Sequence[str] | None = None) -> TableBatch:
        """A batch of `size` sequences that share this graph."""
        return TableBatch.share(self.table, size, names)

    def normalization_fsa(self, merge: Literal["sum", "min"] = "sum") -> Fsa:
        """The graph to compose numerators with, so that the denominator contains them weight for weight.

        See `fsachain.normalization.normalization_fsa`.
        """
        return normalization_fsa(self.fsa, self.initial_probs, merge)
