"""CUDA C++ text of the raw kernels, shipped as data and compiled on the user's machine.

`read(name)` is the interface: a backend hands the text to a run-time compiler, a test to a host compiler. A compiler that
cannot look for our own headers, or a cache that must notice when one changes, takes `read_unit(name)`.
"""

import re
from importlib import resources

__all__ = ["names", "read", "read_unit"]

_OWN_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*$', re.MULTILINE)


def names() -> tuple[str, ...]:
    entries = resources.files(__name__).iterdir()
    return tuple(sorted(entry.name for entry in entries if entry.name.endswith((".cuh", ".cu"))))


def read(name: str) -> str:
    """The text of one kernel file; for unknown names a FileNotFoundError that lists those there are."""
    if name not in names():
        raise FileNotFoundError(f"fsachain.kernels has no text {name!r}; it has {', '.join(names())}")
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def read_unit(name: str) -> str:
    """The text of one kernel file with the texts that it includes in their places, each once; <...> includes stay."""
    seen: set[str] = set()

    def expand(text: str) -> str:
        if text in seen:
            return ""
        seen.add(text)
        return _OWN_INCLUDE.sub(lambda match: expand(match[1]), read(text))

    return expand(name)
