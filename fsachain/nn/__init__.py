"""Networks: the TDNN-F of Kaldi's chain recipes; streams of chunks; `export` writes ONNX files."""

from fsachain.nn.streaming import StreamingModel
from fsachain.nn.tdnnf import NetworkOutput, Tdnnf, TdnnfConfig, num_parameters, reset_batch_norm

__all__ = ["NetworkOutput", "StreamingModel", "Tdnnf", "TdnnfConfig", "num_parameters", "reset_batch_norm"]
