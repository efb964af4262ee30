"""Networks: TDNN-F, Conformer, what yours must have; weights to begin with; streams; `export` writes ONNX files."""

from fsachain.nn.conformer import Conformer, ConformerConfig
from fsachain.nn.network import Network, NetworkOutput, TakenWeights, num_parameters, take_weights
from fsachain.nn.streaming import StreamingModel
from fsachain.nn.tdnnf import Tdnnf, TdnnfConfig, reset_batch_norm

__all__ = [
    "Conformer",
    "ConformerConfig",
    "Network",
    "NetworkOutput",
    "StreamingModel",
    "TakenWeights",
    "Tdnnf",
    "TdnnfConfig",
    "num_parameters",
    "reset_batch_norm",
    "take_weights",
]
