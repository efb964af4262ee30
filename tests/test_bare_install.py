"""The library without optional packages: graphs and sums need numpy, scipy and numba, losses torch, nothing else."""

import subprocess
import sys

import pytest

# Blocks packages, then builds a graph and sums over it.
PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import fsachain

said = fsachain.Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 1], np.log([0.5, 0.25, 0.5]), [-np.inf, 0.0])
batch = fsachain.TableBatch.pack([fsachain.compile_table(said)])
result = fsachain.forward_backward(batch, np.zeros((1, 2, 2)))
print(round(float(np.exp(result.log_prob[0])), 9))  # 0 then 1: 0.5 * 0.25; 1 twice: 0.25 * 0.5
print(fsachain.best_path(batch, np.zeros((1, 2, 2))).pdfs[0].tolist() in ([0, 1], [1, 1]))
print(fsachain.ctc_graph([1, 2]).num_states)
if "torch" not in {absent!r}:
    import torch

    scores = torch.zeros(1, 2, 2, requires_grad=True)
    loss = fsachain.LFMMILoss(fsachain.DenominatorGraph(said, 2))(scores, [2], [said])
    loss.backward()
    print(bool(torch.isfinite(scores.grad).all()))
"""


@pytest.mark.parametrize(
    "absent",
    [
        {"torch"},
        {"click", "rich", "yaml"},
        {"pywrapfst", "pynini"},
        {"torch", "click", "pywrapfst", "pynini", "cupy", "soundfile", "matplotlib"},
    ],
    ids=lambda absent: " ".join(sorted(absent)),
)
def test_graphs_and_sums_work_without(absent):
    program = PROGRAM.format(absent=absent)
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    expected = ["0.25", "True", "5"] + (["True"] if "torch" not in absent else [])
    assert output.stdout.split() == expected
