"""Run k2's own Python tests on `fsachain.k2`: `python tools/k2_tests.py DIR [FILE...]`.

DIR is a checkout's k2/python/tests. Each file runs in a process of its own in which `import k2` gives `fsachain.k2`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MEANT = [
    *("rnnt_loss", "mutual_information", "ctc_loss", "ctc_graph", "ctc_topo", "linear_fsa", "linear_fst"),
    *("linear_fsa_with_self_loops", "linear_fst_with_self_loops", "get_tot_scores", "intersect_dense"),
    *("swoosh_l", "swoosh_r", "swoosh_forward_deriv", "arc_sort", "connect", "compose", "invert"),
    *("levenshtein_graph", "mwer", "random_paths", "shortest_path"),
]

_RUN = """
import sys, types, unittest
import fsachain.k2
sys.modules["k2"] = fsachain.k2
sys.modules["k2.ragged"] = fsachain.k2.ragged
fsachain.k2.sparse = sys.modules["k2.sparse"] = types.ModuleType("k2.sparse")
sys.path.insert(0, sys.argv[1])
suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[2])
result = unittest.TextTestRunner(verbosity=2).run(suite)
print(f"RESULT {result.testsRun} {len(result.failures) + len(result.errors)} {len(result.skipped)}")
"""


def main(folder: str, *names: str) -> int:
    """Run the tests of these files, all that are meant by default, print a table and return how many files fail."""
    failing = 0
    for name in names or MEANT:
        command = [sys.executable, "-c", _RUN, folder, f"{name.removesuffix('_test.py')}_test"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
        run, failed, skipped = map(int, lines[0].split()[1:]) if lines else (0, 1, 0)
        failing += failed > 0
        print(f"| {name}_test.py | {run - failed - skipped} | {failed} | {skipped} |", flush=True)
        if failed:
            print(done.stderr[-3000:], file=sys.stderr)
    return failing


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
