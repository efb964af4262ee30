"""Networks: the TDNN-F of Kaldi's chain recipes."""

from fsachain.nn.tdnnf import NetworkOutput, Tdnnf, TdnnfConfig, num_parameters, reset_batch_norm

__all__ = ["NetworkOutput", "Tdnnf", "TdnnfConfig", "num_parameters", "reset_batch_norm"]
