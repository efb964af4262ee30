"""Fetch Mini LibriSpeech and the language models of LibriSpeech from openslr.org; `--help` lists what can be chosen.

    python recipes/mini_librispeech/download.py FOLDER

Files that are there already, whole, are left alone; one that was broken off is continued. Each is checked by its MD5.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECIPE = Path(__file__).resolve().parent
sys.path.insert(0, str(RECIPE.parents[1]))  # so that the script starts from any folder

from fsachain.errors import DataError

SERVER = "https://www.openslr.org/resources"
BLOCK = 1 << 20
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Resource:
    """Path and MD5 of a file on the server, and the folder that it unpacks to, if it is an archive."""

    path: str
    md5: str
    unpacks_to: str | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


RESOURCES = (
    Resource("11/librispeech-lexicon.txt", "28f72663f6bfed7cd346283c064c315b"),
    Resource("11/3-gram.pruned.3e-7.arpa.gz", "8f67ec741827742eee05799ab7605b50"),
    Resource("11/3-gram.pruned.1e-7.arpa.gz", "9a0f1325bcaf3a0f7b7be4be10823c2a"),
    Resource("31/dev-clean-2.tar.gz", "6d7ab67ac6a1d2c993d050e16d61080d", "LibriSpeech/dev-clean-2"),
    Resource("31/train-clean-5.tar.gz", "5df7d4e78065366204ca6845bb08f490", "LibriSpeech/train-clean-5"),
)
LARGE = Resource("11/3-gram.arpa.gz", "74cbb837e582378c26c602e1c8cbcb9c")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 after an error that is printed in one line."""
    parser = argparse.ArgumentParser(prog="recipes/mini_librispeech/download.py", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go; the recipe's --corpus")
    parser.add_argument("--large", action="store_true", help="also the unpruned trigram, 760 MB packed")
    parser.add_argument("--server", default=SERVER, help=f"a mirror (default {SERVER})")
    options = parser.parse_args(arguments)
    try:
        for resource in (*RESOURCES, *([LARGE] if options.large else [])):
            get(resource, options.folder, options.server)
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def get(resource: Resource, folder: Path, server: str) -> None:
    """Have a file in `folder`, whole and unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / resource.name
    done = folder / f".{resource.name}.unpacked"
    if done.exists():
        print(f"{resource.name}: is there, unpacked")
        return
    if not target.exists():
        partial = folder / f"{resource.name}.part"
        fetch(f"{server}/{resource.path}", partial)
        check(partial, resource)
        partial.rename(target)
    print(f"{resource.name}: is there, {target.stat().st_size / 1e6:.1f} MB")
    if resource.unpacks_to is not None:
        check(target, resource)
        unpack(target, folder, resource.unpacks_to)
        done.touch()


def fetch(url: str, partial: Path) -> None:
    """Append to `partial` what it lacks of the file at `url`."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            # A server that does not continue files sends all of it, with another status.
            expected = answer.length
            came = 0
            with partial.open("ab" if answer.status == 206 else "wb") as out:
                while block := answer.read(BLOCK):
                    came += out.write(block)
                    print(f"\r{url}: {out.tell() / 1e6:.1f} MB", end="", flush=True)
            print()
            if expected is not None and came < expected:  # which `read` does not tell
                raise ConnectionError(f"the connection broke off after {came} of {expected} bytes")
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is lacking
            return
        raise DataError(f"{url}: the server answers {error.code} {error.reason}") from error
    except OSError as error:  # URLError, time-outs and broken connections
        raise DataError(
            f"{url}: {error}; what came so far is kept, start again when there is a network, or give --server"
        ) from error


def check(path: Path, resource: Resource) -> None:
    """Compare a file's MD5; one that differs is deleted."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != resource.md5:
        path.unlink()
        raise DataError(
            f"{resource.name}: has MD5 {found}, expected {resource.md5}; it was deleted, fetch it again"
        )


def unpack(archive: Path, folder: Path, made: str) -> None:
    """Unpack an archive that must hold the folder `made`; entries that lead out of `folder` are refused."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive}: {error}") from error
    if not (folder / made).is_dir():
        raise DataError(f"{archive}: does not hold {made}")


if __name__ == "__main__":
    sys.exit(main())
