"""Rules by which spellings count as equal, as in NIST's global map files (.glm).

    ;; the first sign of the file begins comments
    * CASE_SENSITIVE = "F"
    gonna => going to
    [don't] => [{do not / don't}] / [ ] __ [ ]
    uh => (%HESITATION)

The text of an utterance, with a space at either end, is read from left to right. At each place the first rule whose left
side stands there replaces it, and reading goes on after it. A left side without brackets or quotation marks is of whole
words; in brackets it is of characters, spaces included, as in NIST's filter. After a slash stand the contexts that it must
have on both sides of the underscores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import NamedTuple

from fsachain.asr.decode.alternatives import each_optional, markup_tokens
from fsachain.errors import DataError, counted
from fsachain.files import binary_lines, line_text

_MOST_RULES = 100_000
_LONGEST_LINE = 1 << 12  # bytes
_LONGEST_TEXT = 1 << 22  # characters of an utterance after the rules
_SECTION = re.compile(r"INPUT_DEPENDENT_APPLICATION\s{0,9}=\s{0,9}\"([^\"]*)\"", re.IGNORECASE)
_SETTING = re.compile(r"\*\s{0,9}(\w{1,40})\s{0,9}[=:]?\s{0,9}[\"']([^\"']*)[\"']")
_TRUE = ("t", "true", "yes")
_BRACKETS = {"[": "]", '"': '"'}


class Rule(NamedTuple):
    """One replacement; all texts are characters, spaces included."""

    old: str
    new: str
    before: str = ""  # what must stand in front of `old`
    after: str = ""
    kinds: frozenset[str] = frozenset()  # the sides or formats that the rule's section names; empty for all


@dataclass(frozen=True)
class Equivalences:
    """Rules in their order, which `apply` uses; the module describes them.

    Attributes:
        rules: the first one that fits is used.
        case_sensitive: whether rules look at case.
    """

    rules: tuple[Rule, ...]
    case_sensitive: bool = False
    _by_first: dict[str, list[Rule]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for rule in self.rules:
            sought = rule._replace(
                old=self._folded(rule.old), before=self._folded(rule.before), after=self._folded(rule.after)
            )
            self._by_first.setdefault(sought.old[0], []).append(sought)

    def __repr__(self) -> str:
        return f"Equivalences({counted(len(self.rules), 'rule')})"

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Equivalences:
        """Read a .glm file.

        Raises:
            DataError: a line without an arrow, a rule without a left side, a setting that cannot be followed, or a file
                beyond the limits; the message has the number of the line.
        """
        rules: list[Rule] = []
        kinds: frozenset[str] = frozenset()
        case_sensitive = False
        comment = ""
        for where, line in _lines(path):
            if not comment:
                first = line.split()[0]
                comment = ";;" if "=>" in line or any(map(str.isalnum, first)) else first
            if (section := _SECTION.search(line)) and line.startswith(comment):
                kinds = frozenset(section[1].lower().split("|"))
            text = line.partition(comment)[0].strip()
            if text.startswith("*") and (setting := _SETTING.match(text)):
                case_sensitive = _followed(where, setting[1].lower(), setting[2].lower(), case_sensitive)
            elif text:
                rules.append(_parsed(where, text, kinds))
            if len(rules) > _MOST_RULES:
                raise DataError(f"{where}: more than {_MOST_RULES} rules")
        return cls(tuple(rules), case_sensitive)

    def apply(self, words: Sequence[str], *kinds: str, name: str = "") -> list[str]:
        """Rewrite the words of one utterance.

        Args:
            kinds: what the words are, for sections: "ref" or "hyp", and "trn", "stm", "ctm" or "txt".
            name: of the utterance, for messages.

        Returns:
            Words; braces and slashes of alternatives are words of their own.

        Raises:
            DataError: the rules make the text longer than four million characters.
        """
        text = " ".join(("", *words, "")).replace("(", "( ").replace(")", " )")
        sought = self._folded(text)
        pieces: list[str] = []
        place = size = 0
        while place < len(text):
            rule = self._rule_at(sought, place, kinds)
            piece = text[place] if rule is None else rule.new
            place += 1 if rule is None else len(rule.old)
            pieces.append(piece)
            size += len(piece)
            if size > _LONGEST_TEXT:
                raise DataError(
                    f"utterance {name!r}: the rules make more than {_LONGEST_TEXT} characters of it"
                )
        return each_optional(markup_tokens("".join(pieces).replace("( ", "(").replace(" )", ")")))

    def _rule_at(self, text: str, place: int, kinds: Sequence[str]) -> Rule | None:
        for rule in self._by_first.get(text[place], ()):
            if (
                text.startswith(rule.old, place)
                and text.startswith(rule.after, place + len(rule.old))
                and text.endswith(rule.before, 0, place)
                and (not rule.kinds or not rule.kinds.isdisjoint(kinds))
            ):
                return rule
        return None

    def _folded(self, text: str) -> str:
        return text if self.case_sensitive else fold_case(text)


def fold_case(text: str) -> str:
    """Upper case, character by character: letters whose upper case is two letters stay as they are."""
    upper = text.upper()
    if len(upper) == len(text):
        return upper
    return "".join(c.upper() if len(c.upper()) == 1 else c for c in text)


def _lines(path: str | PathLike[str]) -> Iterator[tuple[str, str]]:
    """(place for messages, text) of each line that is not blank."""
    for number, line in binary_lines(path, longest=_LONGEST_LINE):
        where = f"{path}:{number}"
        if text := line_text(line, where).strip():
            yield where, text


def _followed(where: str, name: str, value: str, case_sensitive: bool) -> bool:
    """What a setting makes of the sensitivity to case; a DataError for one that asks for something else."""
    if name == "case_sensitive":
        return value in _TRUE
    if (name == "copy_no_hit" and value not in _TRUE) or (name == "format" and value != "nist1"):
        raise DataError(
            f"{where}: {name} = {value!r} is not supported; expected {'T' if name[0] == 'c' else 'NIST1'}"
        )
    return case_sensitive


def _parsed(where: str, text: str, kinds: frozenset[str]) -> Rule:
    left, arrow, right = text.partition("=>")
    if not arrow:
        raise DataError(f"{where}: expected a rule such as 'gonna => going to', got {text[:100]!r}")
    before = after = ""
    head, slash, tail = right.rpartition("/")
    is_context = "_" in tail and "}" not in tail and not (0 <= tail.find("]") < tail.find("["))
    if slash and is_context:
        right = head
        before, _, after = tail.partition("_")
        before, after = _unquoted(before)[0], _unquoted(after.lstrip("_"))[0]
    old, is_quoted = _unquoted(left)
    if not old:
        raise DataError(f"{where}: a rule without a left side; expected one such as 'gonna => going to'")
    if not is_quoted:  # whole words
        before, after = before or " ", after or " "
    return Rule(old, _unquoted(right)[0], before, after, kinds)


def _unquoted(text: str) -> tuple[str, bool]:
    """A part of a rule without the brackets or quotation marks that keep its spaces, and whether it had any."""
    part = text.strip()
    if len(part) > 1 and _BRACKETS.get(part[0]) == part[-1]:
        return part[1:-1], True
    return part, False
