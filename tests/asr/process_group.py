"""Groups of processes that talk by gloo, for tests. A fork server imports what is slow once for all of them.

A function that a group runs gets the world and this process's own argument, and returns what can be pickled. Nothing
waits for ever: a group that does not answer within `PATIENCE` seconds is ended and the test fails.
"""

import multiprocessing
import os
import sys
import time
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from unittest.mock import patch

import torch.distributed as dist

PATIENCE = 90.0  # seconds for an answer, on a machine that does other things too
TIMEOUT = 60.0  # seconds that the processes of a group wait for each other

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["warm_work"])


class Group:
    """`size` processes.

    Args:
        size: number of processes.
        timeout: of their world, in seconds.
        on_one_gpu: each takes itself for the only one of a machine, and so the first GPU; NCCL, which refuses two processes
            of one machine on one GPU, is told the same, and sends through the loopback interface. They are not forked, which
            CUDA does not survive.
    """

    def __init__(self, size, timeout=TIMEOUT, on_one_gpu=False):
        context = multiprocessing.get_context("spawn") if on_one_gpu else _context
        if not on_one_gpu:
            modules = os.pathsep.join(sys.path)  # where the fork server finds those of the tests
            with patch.dict(os.environ, PYTHONPATH=modules):
                forkserver.ensure_running()
        # The store lives here, as it lives in torchrun's own process: no port has to be guessed.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._connections: list[Connection] = []
        self.processes = []
        for rank in range(size):
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
                "GLOO_SOCKET_IFNAME": "lo",
            }
            if on_one_gpu:
                alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NCCL_HOSTID": f"machine {rank}"}
                environment |= alone | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, environment, timeout), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self.processes.append(process)

    def ask(self, work, arguments):
        """work(world, argument) in every process; the results, by rank. What is raised comes back as a result too."""
        for connection, argument in zip(self._connections, arguments, strict=True):
            connection.send((work, argument))
        until = time.monotonic() + PATIENCE
        return [self._answer(rank, until) for rank in range(len(arguments))]

    def _answer(self, rank, until):
        connection = self._connections[rank]
        if not connection.poll(max(0.0, until - time.monotonic())):
            self.close()
            raise AssertionError(f"process {rank} has not answered within {PATIENCE} s")
        try:
            return connection.recv()
        except EOFError:
            return None  # it was killed

    def close(self):
        """End all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(timeout=10)


def _serve(connection, environment, timeout):
    os.environ.update(environment)
    import torch

    from fsachain.asr.train.world import World
    from fsachain.backends.cpu.threads import set_num_threads

    torch.set_num_threads(1)
    set_num_threads(1)
    world = World.from_environment(timeout)
    while True:
        try:
            work, argument = connection.recv()
        except EOFError:
            return
        try:
            connection.send(work(world, argument))
        except Exception as error:
            connection.send(error)
            return  # as a command does that ends with an error
