"""From a model to an ONNX file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from fsachain.cli.steps.model import AcousticModel
from fsachain.nn.export import export_onnx


@dataclass(frozen=True)
class ExportSummary:
    """An ONNX file: its size, and how far it is from PyTorch relative to the largest output."""

    num_bytes: int
    difference: float

    def __str__(self) -> str:
        size, apart = f"{self.num_bytes / 1e6:.2f} MB", f"{self.difference:.1e}"
        return f"{size}; onnxruntime and PyTorch differ by {apart} of the largest output"


def export_model(model: AcousticModel, out: Path) -> ExportSummary:
    """Write the model with its CMVN as an ONNX file, checked against PyTorch.

    The metadata has, as JSON, `features` (options of Kaldi's features; samples are 16-bit integers), `cmvn`, `subsampling`
    (input frames per output frame) and `frame_shift_ms`.

    Raises:
        ConfigError, FsachainError, MissingExtraError: see `export_onnx`.
    """
    metadata = {
        "features": asdict(model.experiment.features),
        "cmvn": asdict(model.cmvn.config),
        "subsampling": model.timing.subsampling,
        "frame_shift_ms": model.experiment.features.frame_shift_ms,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    difference = export_onnx(out, model.network, model.cmvn, metadata)
    return ExportSummary(out.stat().st_size, difference)
