"""Old names of modules, kept for one release: importing one gives the module at its new place and a DeprecationWarning.

The module is the same object under both names, so that pickles and checkpoints that name the old place load the classes of
the new one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old place to new one; what is below a package moves with it.
MOVED = {
    "fsachain.cli": "fsachain.asr.cli",
    "fsachain.data": "fsachain.asr.data",
    "fsachain.decode": "fsachain.asr.decode",
    "fsachain.kaldi": "fsachain.asr.kaldi",
    "fsachain.nn": "fsachain.asr.nn",
    "fsachain.plot": "fsachain.asr.plot",
    "fsachain.report": "fsachain.asr.report",
    "fsachain.train": "fsachain.asr.train",
}


def new_name(name: str) -> str | None:
    """Return the place where the module `name` is now, or None if it has not moved."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        target = MOVED.get(".".join(parts[:length]))
        if target is not None:
            return ".".join([target, *parts[length:]])
    return None


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = new_name(fullname)
        if new is None:
            return None
        return ModuleSpec(fullname, _Loader(new), is_package=True)


class _Loader(Loader):
    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        try:
            module = import_module(self._new)
        except ModuleNotFoundError as error:
            if error.name != self._new:
                raise  # an optional package is missing
            raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name) from error
        # stacklevel counts the frames of importlib out, so this is the line with the import.
        warnings.warn(f"{spec.name} has moved; import {self._new} instead", DeprecationWarning, stacklevel=2)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import system has put that of the old name in its place


def install() -> None:
    """Let the import system know the old names.

    First of all finders: a package under its old name has the folder of the new one, in which the usual finder would find
    its modules, and load each a second time.
    """
    sys.meta_path.insert(0, _Finder())
