"""Matrices for Kaldi: network outputs as an archive that Kaldi's own decoders read.

`latgen-faster-mapped 0.trans_mdl HCLG.fst ark:outputs.ark ...` takes the archive as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fsachain.errors import DataError, require


def write_matrices(
    path: str | os.PathLike[str],
    matrices: Mapping[str, npt.ArrayLike] | Iterable[tuple[str, npt.ArrayLike]],
) -> int:
    """Write matrices to a binary archive and, beside it, an scp file of the same name; returns how many.

    Args:
        path: the archive, whose name ends in .ark. Both files are replaced when all is written.
        matrices: float [T, P] by utterance id, such as network outputs; rounded to float32.

    Raises:
        DataError: a key with white space, a matrix with NaN, +inf or another number of axes, another name.
    """
    archive = Path(path)
    if archive.suffix != ".ark" or any(mark in os.fspath(archive) for mark in ",: "):
        raise DataError(f"{archive}: expected a name that ends in .ark, without comma, colon and space")
    kaldi_native_io = require("kaldi_native_io", extra="recipes")
    written = archive.with_name(archive.name + ".part")
    addresses = []
    items = matrices.items() if isinstance(matrices, Mapping) else matrices
    with kaldi_native_io.FloatMatrixWriter(f"ark:{written}") as writer:
        end = 0
        for key, values in items:
            matrix = _checked(key, values)
            # key, a space; then the binary mark, "FM ", two integers of five bytes, and the numbers
            addresses.append(f"{key} {archive}:{end + len(key.encode()) + 1}\n")
            end += len(key.encode()) + 16 + matrix.nbytes
            writer.write(key, matrix)
    if written.stat().st_size != end:
        raise DataError(
            f"{archive}: {written.stat().st_size} bytes were written, expected {end}; is the disk full?"
        )
    written.replace(archive)
    archive.with_suffix(".scp").write_text("".join(addresses), encoding="utf-8")
    return len(addresses)


def _checked(key: str, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    if not key or key.split() != [key]:
        raise DataError(f"key {key!r}: expected a name without white space")
    matrix = np.ascontiguousarray(values, dtype=np.float32)
    if matrix.ndim != 2 or not matrix.size:
        raise DataError(f"{key!r} has shape {list(matrix.shape)}; expected [frames, pdfs], none of them 0")
    if np.isnan(matrix).any() or np.isposinf(matrix).any():
        raise DataError(f"{key!r} has NaN or +inf among its scores")
    return matrix
