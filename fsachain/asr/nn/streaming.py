"""Network outputs while the features come in: chunk by chunk, equal to those of the whole utterance.

A network whose outputs see a bounded stretch of input, as convolutions do, needs of the past only that stretch. Each
chunk is computed together with the frames around it; outputs whose own context is not there yet wait for the next
chunk. At the two ends of the utterance the network sees its ends, as it does without chunks. A network with a `period`,
such as a Conformer whose attention works in chunks, is cut at multiples of it alone.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from fsachain.errors import ConfigError, ShapeError


class StreamingModel:
    """A network that is given an utterance in chunks of any length and returns outputs as soon as they are settled.

    Between chunks it keeps the features that outputs to come still see: memory does not grow with the utterance. A chunk of
    C frames costs the work of C + context frames, so that chunks of a second and more are economical.

    Example:
        stream = StreamingModel(model.network)
        for features in chunks:                     # [T, F], normalised as for training
            scores = stream.accept(features)        # [T', P]; none at first
        scores = stream.finish()                    # the rest; the next chunk begins another utterance

    Args:
        network: in evaluation mode, such as a `Tdnnf`; see `Network`.
        context: input frames that an output sees before and after its own s frames; None: `network.context`.

    Raises:
        ConfigError: a network in training mode, or one without a bounded context where none is given.
    """

    def __init__(self, network: Any, context: tuple[int, int] | None = None) -> None:
        if network.training:
            raise ConfigError("network: is in training mode; expected network.eval()")
        if context is None and not hasattr(network, "context"):
            raise ConfigError(
                f"context: {type(network).__name__} does not say how far its outputs see; expected (frames before, frames "
                "after)"
            )
        if context is None and network.context is None:
            raise ConfigError(
                f"context: each output of {type(network).__name__} sees the whole utterance, so none is settled before its "
                "end; expected (frames before, frames after), which a Conformer has with a `chunk`"
            )
        before, after = map(int, network.context if context is None else context)
        if before < 0 or after < 0:
            raise ConfigError(f"context is {(before, after)}; expected two numbers of 0 or more")
        self.network = network
        self._step: int = self.network.subsampling
        self._period: int = getattr(network, "period", 1)
        self._before = -(-before // self._step)  # in output frames, so that chunks begin where an output does
        self._after = after
        # Outputs of one period are settled together, by what the last of them sees.
        self._behind = max(0, after - (self._period - 1) * self._step)
        self._kept: Tensor | None
        self._first: int  # output frame at which the kept features begin
        self._returned: int
        self._begin()

    @property
    def delay(self) -> int:
        """Input frames that follow the first frame of an output before it is settled."""
        return self._step - 1 + self._after

    def accept(self, features: npt.ArrayLike | Tensor) -> Tensor:
        """Take the next frames.

        Args:
            features: float [T, F], T >= 0.

        Returns:
            The outputs [T', P] that they settle, on the network's device; T' is 0 while too little is there.

        Raises:
            ShapeError: not two axes, or another width than the network's; the stream is as it was.
        """
        frames, width = torch.as_tensor(features), self.network.num_features
        if frames.dim() != 2 or frames.shape[1] != width:
            raise ShapeError(f"features have shape {list(frames.shape)}, expected [T, {width}]")
        self._kept = frames.clone() if self._kept is None else torch.cat([self._kept, frames])
        settled = max(0, self._received() - self._behind) // self._step
        return self._outputs(settled // self._period * self._period)

    def finish(self) -> Tensor:
        """The outputs that waited for frames that do not come; what is accepted next is another utterance.

        Raises:
            ShapeError: no features were accepted, not even [0, F].
        """
        if self._kept is None:
            raise ShapeError("features: finish() before accept(); expected at least one call with [T, F]")
        last = self._outputs(-(-self._received() // self._step))
        self._begin()
        return last

    def _begin(self) -> None:
        self._kept, self._first, self._returned = None, 0, 0

    def _received(self) -> int:
        assert self._kept is not None
        return self._first * self._step + len(self._kept)

    @torch.inference_mode()
    def _outputs(self, end: int) -> Tensor:
        """Outputs from the first that was not returned up to `end`."""
        assert self._kept is not None
        where = next(self.network.parameters()).device
        if end <= self._returned:
            return torch.zeros(0, self.network.num_pdfs, device=where)
        features = self._kept[None].to(where)
        found = self.network(features, torch.tensor([len(self._kept)])).nnet_output[0]
        outputs = found[self._returned - self._first : end - self._first]
        self._returned = end
        keep_from = max(self._first, (end - self._before) // self._period * self._period)
        self._kept = self._kept[(keep_from - self._first) * self._step :].clone()
        self._first = keep_from
        return outputs.clone()
