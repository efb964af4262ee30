"""CUDA C++ text of the raw kernels, shipped as data and compiled on the user's machine.

`read(name)` is the interface: a backend hands the text to a run-time compiler, a test to a host compiler.
"""

from importlib import resources

__all__ = ["names", "read"]


def names() -> tuple[str, ...]:
    """The names of all kernel texts, sorted."""
    entries = resources.files(__name__).iterdir()
    return tuple(sorted(entry.name for entry in entries if entry.name.endswith((".cuh", ".cu"))))


def read(name: str) -> str:
    """The text of one kernel file.

    Args:
        name: file name inside the package, such as "log_add.cuh".

    Raises:
        FileNotFoundError: no kernel text has this name; the message lists those there are.
    """
    if name not in names():
        raise FileNotFoundError(f"fsachain.kernels has no text {name!r}; it has {', '.join(names())}")
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
