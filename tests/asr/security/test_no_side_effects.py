"""Reading files of every kind unpickles nothing, starts no process, opens no connection, writes nothing elsewhere."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from pathlib import Path
import numpy, soundfile, safetensors.torch, torch, yaml
from tools.fuzz.readers import READERS

folder = Path(sys.argv[1])
sound = []
for reader in READERS:
    path = folder / f"{reader.name}{reader.suffix}"
    reader.write(path)
    reader.read(path)  # whatever is loaded on first use is, before anybody listens
    sound.append((reader, path))

FORBIDDEN = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
             "socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request")
heard, opened = [], []

def listen(event, arguments):
    if event in FORBIDDEN:
        heard.append(event)
    elif event == "open" and isinstance(arguments[0], str) and set("wax+") & set(arguments[1] or ""):
        opened.append(str(arguments[0]))

sys.addaudithook(listen)
for reader, path in sound:
    reader.read(path)
    damaged = path.with_name("damaged" + path.suffix)
    damaged.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        reader.read(damaged)
    except Exception:
        pass
print(sorted(set(heard)))
print([path for path in opened if not path.startswith(str(folder))])
print(len(sound))
"""


def test_reading_runs_nothing_and_connects_to_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # where packed files are unpacked, without a name
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    heard, elsewhere, count = done.stdout.splitlines()
    assert heard == "[]"
    assert elsewhere == "[]"
    assert int(count) >= 20


DANGEROUS_MODULES = {"urllib", "http", "socket", "ftplib", "requests", "pickle", "marshal", "shelve"}
DANGEROUS_CALLS = {"eval", "exec", "os.system", "os.popen"}
DANGEROUS_CALLS |= {f"{package}.load" for package in ("torch", "yaml", "numpy", "joblib")}
# Each with the reason why it may.
ALLOWED = {
    ("fsachain/graph/shards.py", "pickle"),  # a maker goes to worker processes, which this process started
    ("fsachain/asr/data/workers.py", "pickle"),  # likewise
    ("fsachain/backends/cpu/jit.py", "pickle"),  # numba's index of compiled kernels, in the user's own cache folder
    ("fsachain/asr/cli/corpus.py", "urllib"),  # urllib.parse writes file names as addresses
}  # fmt: skip


def uses(path):
    """Imports and calls of a module that could run code or reach the network."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & DANGEROUS_MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0]} & DANGEROUS_MODULES
        elif isinstance(node, ast.Call):
            found |= {ast.unparse(node.func)} & DANGEROUS_CALLS
            found |= {"shell=True" for keyword in node.keywords if ast.unparse(keyword) == "shell=True"}
    return found


def test_what_could_run_code_or_reach_the_network_is_a_short_list():
    found = {
        (path.relative_to(ROOT).as_posix(), word)
        for path in sorted((ROOT / "fsachain").rglob("*.py"))
        for word in uses(path)
    }
    assert found <= ALLOWED
