"""Runs CUDA kernels on the host: the same text, compiled by g++, with a thread of the host for each CUDA thread.

`HostDevice` stands where a GPU would: the drivers of the backend do not know the difference. Races, deadlocks and wrong
accesses are real, so that sanitizers find them: see `replay`.
"""

from tools.cuda_on_host.build import Sanitizer
from tools.cuda_on_host.device import HostDevice, HostError, pretended
from tools.cuda_on_host.libcuda import skip_reason

__all__ = ["HostDevice", "HostError", "Sanitizer", "pretended", "skip_reason"]
