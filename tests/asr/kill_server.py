"""Runs small pieces of work in children that are killed at a chosen point; a program of its own, driven by `Server`.

The program imports all that is slow once, then forks a child for each request, so that a kill costs a fraction of
a second. A request is one line of JSON, and so is the answer. A child can be killed (SIGKILL) at any of the
points where it touches a file, counted from the start of its work, or after a time; or a point can fail with an
error of the system instead.
"""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ERRORS = {"full": errno.ENOSPC, "read-only": errno.EROFS}


@dataclass(frozen=True)
class Ended:
    """How a child ended: `signal` or `status`, the points it passed, and the message of its error."""

    signal: int
    status: int
    points: list[str]
    message: str
    seconds: float


class Server:
    """The driver's side."""

    def __init__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).resolve().parents[2],
        )

    def run(self, work, folder, **fault):
        """Do `work` in `folder`.

        Args:
            work: one of `WORK`.
            folder: of all files of the work.
            fault: `point` and `kind` ("kill", "full" or "read-only"): at that point, counted from 0; or `after`:
                killed after so many seconds.
        """
        request = {"work": work, "folder": str(folder), **fault}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the server ended at {request}"
        return Ended(**json.loads(answer))

    def close(self):
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


class Points:
    """Counts the places where files are touched, writes their names down, and strikes at one of them."""

    def __init__(self, trace, strike_at, kind):
        self.trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        self.count, self.strike_at, self.kind = 0, strike_at, kind

    def __call__(self, name):
        number, self.count = self.count, self.count + 1
        os.write(self.trace, f"{name}\n".encode())
        if number != self.strike_at:
            return
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(ERRORS[self.kind], os.strerror(ERRORS[self.kind]))

    def install(self):
        """Put a point before and after each call of the system by which files are written here."""
        import fsachain.files as files
        from fsachain.asr.train.log import JsonLinesLog

        open_path, fsync, replace, unlink = Path.open, os.fsync, Path.replace, Path.unlink
        sync_folder, write_line = files.sync_folder, JsonLinesLog.write

        class Halving:
            """A file whose writes can end in the middle."""

            def __init__(self, file):
                self.file = file

            def write(wrapper, data):
                half = len(data) // 2
                wrapper.file.write(data[:half])
                wrapper.file.flush()
                self("half written")
                wrapper.file.write(data[half:])
                return len(data)

            def __getattr__(self, name):
                return getattr(self.file, name)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                self.file.close()

        def around(name, call):
            def wrapped(*arguments, **options):
                self(f"before {name}")
                result = call(*arguments, **options)
                self(f"after {name}")
                return result

            return wrapped

        def half_a_line(log, event, **values):
            if self.count == self.strike_at:
                with log.path.open("a") as file:
                    file.write('{"event": "' + event)
            self("half a line of the log")
            write_line(log, event, **values)

        def opened(path, mode="r", *options, **named):
            file = open_path(path, mode, *options, **named)
            return Halving(file) if mode == "xb" else file

        Path.open = opened  # type: ignore[method-assign,assignment]
        os.fsync = around("fsync", fsync)
        Path.replace = around("rename", replace)  # type: ignore[method-assign]
        files.sync_folder = around("fsync of the folder", sync_folder)
        Path.unlink = around("deletion", unlink)  # type: ignore[method-assign]
        JsonLinesLog.write = half_a_line  # type: ignore[method-assign]


class Recorder:
    """Progress that writes down the objective after each batch, bit for bit."""

    def __init__(self, folder):
        self.file = (folder / "losses.txt").open("a")
        self.messages = (folder / "messages.txt").open("a")
        self.epoch = 0

    def start_epoch(self, epoch, num_epochs, num_batches, done):
        self.epoch = epoch

    def batch(self, sums):
        self.file.write(f"{self.epoch} {sums.batches} {sums.objf.hex()}\n")
        self.file.flush()

    def end_epoch(self, *figures): ...

    def start_ending(self): ...

    def message(self, text):
        self.messages.write(text + "\n")
        self.messages.flush()

    def close(self): ...


def train(folder):
    """The whole training, or what is left of it."""
    from toy_training import corpus, lfmmi_trainer

    examples, numerators = corpus(18)
    trainer = lfmmi_trainer(folder / "model", numerators)
    trainer.progress = Recorder(folder)
    trainer.fit(examples, examples[:4])


def fill_cache(folder):
    """Features of two chunks of recordings, which the driver has written."""
    from fsachain.asr.data import DataDir, FeatureConfig, Utterance, load_examples

    utterances = [Utterance(f"u{n}", "a", (), str(folder / f"{n % 3}.wav")) for n in range(70)]
    load_examples(DataDir(utterances), FeatureConfig(num_mel_bins=4), cache_dir=folder / "cache")


WORK = {"train": train, "cache": fill_cache}


def child(request):
    """Do the work; the exit status is that of the command line."""
    from fsachain.asr.cli import describe, exit_status
    from fsachain.errors import FsachainError

    folder = Path(request["folder"])
    Points(folder / "points.txt", request.get("point"), request.get("kind", "kill")).install()
    status = 0
    try:
        WORK[request["work"]](folder)
    except (FsachainError, OSError) as error:
        (folder / "error.txt").write_text(describe(error))
        status = exit_status(error)
    finally:
        os._exit(status)


def serve():
    """Answer requests until the end of the input."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        train(Path(scratch))  # whatever is compiled or loaded on first use is, before the children come
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        (folder / "error.txt").unlink(missing_ok=True)
        started = time.monotonic()
        process = os.fork()
        if process == 0:
            child(request)
        if "after" in request:
            time.sleep(request["after"])
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        message = folder / "error.txt"
        answer = {
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1,
            "points": (folder / "points.txt").read_text().splitlines()
            if (folder / "points.txt").exists()
            else [],
            "message": message.read_text() if message.exists() else "",
            "seconds": time.monotonic() - started,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    random.seed(1)
    serve()
