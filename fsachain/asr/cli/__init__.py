"""The command `fsachain`: one subcommand for each step from a lexicon to a word error rate.

app         the names of all commands, which are imported when they are asked for
options     commands, arguments and options; resources: cache, workers, and what happens to bad data
config      the sections of an experiment's YAML file
others      one file for each group of commands: the command and what it does; recipes call the functions beside them
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Sequence
from importlib import metadata

from fsachain.asr.train.stopping import StoppedError
from fsachain.errors import FsachainError, LeftOutError, printable, require, without_python

EXIT_USER_ERROR = 1
EXIT_LEFT_OUT = 3  # the work is done, without some utterances, which are listed
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: the state is saved, start the command again
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit.

    0 done, 1 an error in one line, 2 wrong usage, 3 done without some utterances, 75 stopped, 130 interrupted.
    """
    status = call()
    gc.freeze()  # the interpreter's last search for garbage would go through all that was imported
    sys.exit(status)


def call(arguments: Sequence[str] | None = None) -> int:
    """The exit status of the command line, or of `fsachain ARGUMENTS...`; errors are printed."""
    if (sys.argv[1:] if arguments is None else list(arguments)) == ["--version"]:
        print(f"fsachain, version {metadata.version('fsachain')}")  # without what the commands need
        return 0
    try:
        click = require("click", extra="recipes")
        from fsachain.asr.cli.app import app

        try:
            return int(app(arguments, standalone_mode=False) or 0)
        except click.Abort:  # what click makes of Ctrl-C
            return EXIT_INTERRUPTED
        except click.ClickException as error:
            error.show()
            return int(error.exit_code)
    except (FsachainError, OSError) as error:
        kind = "" if isinstance(error, LeftOutError) else "error: "
        print(f"{kind}{describe(error)}", file=sys.stderr)
        return exit_status(error)


def exit_status(error: FsachainError | OSError) -> int:
    if isinstance(error, LeftOutError):
        return EXIT_LEFT_OUT
    return EXIT_STOPPED if isinstance(error, StoppedError) else EXIT_USER_ERROR


def describe(error: BaseException) -> str:
    """The message of an error as one line; whole numbers without ".0"."""
    if isinstance(error, OSError) and error.filename is not None:
        return printable(f"{error.filename}: {error.strerror}")
    told = without_python(" ".join(str(error).split()))
    text = re.sub(r"(?<![\w./-])(-?\d+)\.0(?![\w./])", r"\1", told)
    return printable(text) or type(error).__name__
