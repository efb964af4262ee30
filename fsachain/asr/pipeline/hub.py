"""Models on the Hugging Face Hub: `hf://owner/name` and the file that it stands for."""

from __future__ import annotations

import re
from pathlib import Path

from fsachain.errors import DataError, require

_ADDRESS = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+))?")  # a Path makes one slash of two
SCHEME = "hf:/"


def is_address(path: str | Path) -> bool:
    """Say whether this is an address on the Hub and not a path."""
    return str(path).startswith(SCHEME)


def download(address: str | Path, file: str) -> Path:
    """Return the local copy of a file, which huggingface_hub downloads once and keeps in its cache.

    Args:
        address: hf://OWNER/NAME, with @REVISION for a branch, a tag or a commit, and /FILE for another file.
        file: the file if the address names none.

    Returns:
        The path in the cache. With HF_HUB_OFFLINE=1 nothing but the cache is looked at.

    Raises:
        DataError: an address of another form, a repository or file that cannot be had.
        MissingExtraError: huggingface_hub is not installed.
    """
    parts = _ADDRESS.fullmatch(str(address))
    if parts is None:
        raise DataError(
            f"{address}: expected hf://OWNER/NAME, hf://OWNER/NAME@REVISION or hf://OWNER/NAME/FILE"
        )
    repository, revision, inside = parts.groups()
    hub = require("huggingface_hub", extra="hub")
    try:
        return Path(hub.hf_hub_download(repository, inside or file, revision=revision))
    except (OSError, ValueError) as error:  # of the network, of the Hub, of a name that is none
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{address}: cannot get {inside or file} ({type(error).__name__}: {reason}); expected a repository with this "
            "file; log in with `hf auth login` if it is private"
        ) from error
