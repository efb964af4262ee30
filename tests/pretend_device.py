"""What tests need to run the CUDA route on the host, see `tools.cuda_on_host.pretend`."""

import fake_cupy
import pytest

from tools.cuda_on_host import HostMemory, skip_reason
from tools.cuda_on_host.pretend import PretendDevice

needs_host_compiler = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))


class CupyMemory(HostMemory):
    """As memory of cupy's pool."""

    def array(self, dtype, shape):
        return fake_cupy.make_array(shape, dtype, self.bytes)


class PretendCupyDevice(PretendDevice):
    memory_type = CupyMemory
