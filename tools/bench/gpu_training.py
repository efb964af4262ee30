"""Steps of a training as large as Kaldi's chain recipes have it: what a loss is a share of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from fsachain.nn.tdnnf import Tdnnf, TdnnfConfig
from tools.bench.timing import Call

FEATURES, SUBSAMPLING = 40, 3
# Four layers of all input frames, of which the last thins them out, and ten of the rest.
STRIDES, THINS_OUT = (1, 1, 1, 0, *(1,) * 10), 4
PRECISIONS = ("TF32", "bfloat16")  # of matrix products: float32 with fewer bits, and autocast

Loss = Callable[[torch.Tensor], torch.Tensor]


def steps(
    loss: Loss, shape: tuple[int, int, int], widths: tuple[int, int], precision: str, device: torch.device
) -> dict[str, Call]:
    """A whole step and one with a trivial loss: forward, backward, and SGD with momentum.

    Args:
        shape: of the scores [N, T, P]; the features have three times as many frames.
        widths: channels and bottleneck.
    """
    (size, frames, pdfs), (channels, bottleneck) = shape, widths
    torch.manual_seed(1)
    config = TdnnfConfig(
        FEATURES,
        pdfs,
        channels=channels,
        bottleneck=bottleneck,
        time_strides=STRIDES,
        subsampling=SUBSAMPLING,
        subsampling_layer=THINS_OUT,
        prefinal=channels,
    )
    network = Tdnnf(config).to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-5, momentum=0.9)
    features = torch.randn(size, SUBSAMPLING * frames, FEATURES, device=device)
    lengths = torch.full((size,), SUBSAMPLING * frames)

    def step(of_scores: Loss) -> None:
        optimizer.zero_grad()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                scores = network(features, lengths).nnet_output
            of_scores(scores.float()).sum().backward()
        finally:
            torch.set_float32_matmul_precision(before)
        optimizer.step()

    return {"whole": partial(step, loss), "trivial": partial(step, torch.mean)}
