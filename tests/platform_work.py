"""What `test_platforms` runs in a process of its own: the library where something is absent that Linux has.

    python platform_work.py FOLDER MODE

MODE "blocked": neither the modules nor the functions of `os` that only POSIX has. MODE "reference": without a loss that
compiles, for places from which nothing compiled can be taken.
"""

import os
import sys
import warnings

# Modules and parts of `os` that Windows lacks; Python's own library and the packages below find them absent too.
POSIX_MODULES = ("fcntl", "grp", "posix_spawn", "pty", "pwd", "resource", "syslog", "termios", "tty")
POSIX_PARTS = (
    *(
        "fork",
        "pread",
        "pwrite",
        "register_at_fork",
        "sched_getaffinity",
        "sysconf",
        "getuid",
        "geteuid",
        "killpg",
    ),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"),  # O_NONBLOCK stays: filelock has its own way on Windows
)


def block():
    import filelock  # noqa: F401, which on Windows has locks of its own
    import numba  # noqa: F401
    import torch  # noqa: F401

    for name in [one for one in sys.modules if one.partition(".")[0] == "fsachain"]:
        raise AssertionError(f"{name} was imported before the block")
    for name in POSIX_MODULES:
        sys.modules[name] = None
    for name in POSIX_PARTS:
        if hasattr(os, name):
            delattr(os, name)


def import_everything():
    """Every module of the package but what needs an optional package; returns the names of those that were imported."""
    import importlib
    import pkgutil

    import fsachain

    imported = []
    for module in pkgutil.walk_packages(fsachain.__path__, "fsachain."):
        if module.name.startswith("fsachain.kernels") or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("fsachain", *POSIX_MODULES):
                raise
            continue
        imported.append(module.name)
    return imported


def use_files(folder):
    """Graphs, tables and locks in a folder."""
    import numpy as np
    from loss_calls import NUMERATOR

    from fsachain import TransitionTable, compile_table
    from fsachain.errors import ConfigError
    from fsachain.files import locked
    from fsachain.fsa import Fsa
    from fsachain.table import TableFile, write_tables

    table = compile_table(NUMERATOR, 5)
    table.save(folder / "täble.npz")
    assert TransitionTable.load(folder / "täble.npz").num_arcs == 3
    write_tables(folder / "täbles", {"ün": table, "deux": table})
    with_name = TableFile(folder / "täbles")["ün"]
    assert np.array_equal(with_name.active_pdfs, table.active_pdfs)
    NUMERATOR.write(folder / "gräph.fst")
    assert Fsa.read(folder / "gräph.fst").num_arcs == 3
    (folder / "gräph.txt").write_text(NUMERATOR.to_text(), encoding="utf-8")
    assert Fsa.from_text(folder / "gräph.txt").num_arcs == 3
    with locked(folder / "ä work", "a test"):
        try:
            with locked(folder / "ä work", "a test"):
                raise AssertionError("a second lock")
        except ConfigError as error:
            assert "ä work: a test is running" in str(error)
    with locked(folder / "ä work", "a test"):
        pass


def use_losses(names):
    import torch
    from loss_calls import LOSSES, SCORES

    for name in names or LOSSES:
        scores = SCORES.clone().requires_grad_()
        loss = LOSSES[name](scores)
        loss.backward()
        assert torch.isfinite(loss) and scores.grad.abs().sum() > 0, name


def use_reference():
    import torch
    from loss_calls import BATCH, FRAMES, SCORES

    from fsachain import total_log_prob

    scores = SCORES.clone().requires_grad_()
    total_log_prob(BATCH, scores, FRAMES, backend="reference").sum().backward()
    assert torch.allclose(scores.grad.sum(2), torch.ones(2, 4), atol=1e-4)


def main():
    from pathlib import Path

    folder, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "blocked":
        block()
    # A file that is opened in an encoding of the machine's would hold other bytes on Windows.
    warnings.filterwarnings("error", category=EncodingWarning, module=r"fsachain\.")
    if mode == "blocked":
        print(*import_everything())
        use_losses(None)
    else:
        use_reference()
    use_files(folder)
    import fsachain

    print(Path(fsachain.__file__).parent)


if __name__ == "__main__":
    main()
