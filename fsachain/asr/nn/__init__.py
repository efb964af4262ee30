"""Networks: TDNN-F, Conformer, the protocol of others; weights of another network; streaming; export to ONNX."""

from fsachain.asr.nn.conformer import Conformer, ConformerConfig
from fsachain.asr.nn.network import Network, NetworkOutput, TakenWeights, num_parameters, take_weights
from fsachain.asr.nn.streaming import StreamingModel
from fsachain.asr.nn.tdnnf import Tdnnf, TdnnfConfig

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
    "take_weights",
]
