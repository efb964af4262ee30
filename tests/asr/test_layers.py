"""The layers of the package, read from its imports: each may use those below it, never those above."""

import ast
import configparser
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fsachain"

# From the bottom up. A single module of the package's top folder is "core" unless it is named here.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"kernels", "errors", "moved"}), frozenset({"core"}), frozenset({"graph", "backends"}),
    frozenset({"loss"}),
    # Losses in the shape that other toolkits call.
    frozenset({"integrations", "k2"}),
    # The application. `__main__` belongs to it: it is the command.
    frozenset({"asr", "asr.kaldi"}), frozenset({"asr.nn", "asr.data"}), frozenset({"asr.train", "asr.decode", "asr.plot"}),
    frozenset({"asr.report", "asr.pipeline"}), frozenset({"asr.cli"}), frozenset({"__main__"}),
)  # fmt: skip
APPLICATION = frozenset({"asr", "__main__"})
# Third-party packages that a layer may import at module level; the others are imported where they are used.
NUMERICAL = frozenset({"numpy", "scipy"})
THIRD_PARTY = dict.fromkeys(("kernels", "errors", "moved", "asr", "__main__"), frozenset())
THIRD_PARTY |= dict.fromkeys(("core", "graph", "asr.kaldi"), NUMERICAL)
THIRD_PARTY |= dict.fromkeys(
    (
        "loss",
        "integrations",
        "k2",
        "asr.nn",
        "asr.data",
        "asr.train",
        "asr.decode",
        "asr.plot",
        "asr.report",
        "asr.pipeline",
    ),
    NUMERICAL | {"torch"},
)
THIRD_PARTY |= {"backends": NUMERICAL | {"numba", "llvmlite"}}  # llvmlite is what numba is made with
THIRD_PARTY |= {"asr.cli": NUMERICAL | {"torch", "click"}}
NUMBA_COMPILERS = frozenset({"njit", "jit", "vectorize", "guvectorize", "cfunc"})
FILES = sorted(PACKAGE.rglob("*.py")) + sorted((ROOT / "kernels").glob("*.py"))


def module_name(path):
    relative = path.relative_to(ROOT).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    return ".".join(("fsachain", *parts) if parts[0] == "kernels" else parts)


MODULES = {module_name(path): path for path in FILES}


def layer_of(module):
    parts = module.split(".")
    if len(parts) == 1:
        return "facade"
    known = frozenset().union(*LAYERS)
    for name in (".".join(parts[1:3]), parts[1]):
        if name in known:
            return name
    return "core"


def rank(layer):
    return next(i for i, names in enumerate(LAYERS) if layer in names)


def _is_type_checking(node):
    return "TYPE_CHECKING" in ast.unparse(node.test)


def _walk(node, in_function):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, in_function
        elif isinstance(child, ast.If) and _is_type_checking(child):
            continue
        else:
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, inside)


@cache
def imports_of(path):
    """Pairs (imported module, whether inside a function); imports for type checkers alone are left out."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    found: set[tuple[str, bool]] = set()
    for node, inside in _walk(ast.parse(path.read_text(encoding="utf-8")), False):
        if isinstance(node, ast.Import):
            found.update((alias.name, inside) for alias in node.names)
            continue
        base = node.module or ""
        if node.level:
            parent = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parent, base] if base else parent)
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            found.add((submodule if submodule in MODULES else base, inside))
    return found


def test_imports_point_down_only():
    for module, path in MODULES.items():
        for target, _ in imports_of(path) if layer_of(module) != "facade" else ():
            if target.split(".")[0] != "fsachain":
                continue
            layer = layer_of(target)
            assert layer != "facade", f"{module} imports the facade; import the defining module instead"
            told = f"{module} ({layer_of(module)}) imports {target} ({layer}), which is above it"
            assert rank(layer) <= rank(layer_of(module)), told


def test_the_library_imports_nothing_of_the_application():
    for module, path in MODULES.items():
        if module.split(".")[1:2] and module.split(".")[1] in APPLICATION:
            continue
        upward = {target for target, _ in imports_of(path) if target.startswith("fsachain.asr")}
        assert not upward, f"{module} of the library imports {sorted(upward)} of the application"


def test_third_party_packages_begin_at_their_layer():
    for module, path in MODULES.items():
        for target, inside in imports_of(path) if layer_of(module) != "facade" else ():
            top = target.split(".")[0]
            if inside or top == "fsachain" or top in sys.stdlib_module_names:
                continue
            allowed = THIRD_PARTY[layer_of(module)]
            told = f"{module} imports {top} at module level; its layer may import {sorted(allowed)}"
            assert top in allowed, told


def test_module_imports_are_acyclic():
    """Imports inside functions count too."""
    graph = {
        module: {target for target, _ in imports_of(path) if target in MODULES and target != module}
        for module, path in MODULES.items()
        if layer_of(module) != "facade"
    }
    TopologicalSorter(graph).prepare()


def compiled_otherwise(path, text):
    """What numba compiles in this file past `cpu/jit.py`, if the file is of the package or uses a function compiled there.

    Helpers are linked into kernels of ours only: what numba compiles with its own passes would call code that is nowhere.
    """
    tree = ast.parse(text)
    own, from_numba, ours = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba":
            from_numba |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fsachain.backends.cpu"):
            ours |= {name.name for name in node.names}
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "numba"
        ):
            own.add(node.attr)
    found = (own | from_numba) & NUMBA_COMPILERS
    return found if PACKAGE in path.parents or ours - {"with_cache"} else set()


def test_only_our_own_decorators_compile_what_calls_our_helpers():
    folders = "fsachain", "tools", "recipes", "tests"
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    otherwise = {path for path in files if compiled_otherwise(path, path.read_text("utf-8"))}
    assert otherwise == {PACKAGE / "backends" / "cpu" / "jit.py"}
    tool = "from fsachain.backends.cpu.numbers import multiply\n@numba.njit\ndef f(x):\n    return multiply(x, x)\n"
    assert compiled_otherwise(ROOT / "tools" / "some.py", tool) == {"njit"}
    assert compiled_otherwise(PACKAGE / "some.py", "from numba import jit as fast\n") == {"jit"}


def test_setup_lists_every_package():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    on_disk = {module_name(path) for path in FILES if path.name == "__init__.py"}
    assert listed == on_disk


def test_import_of_the_facade_loads_no_optional_package():
    optional = {"pywrapfst", "pynini", "cupy", "soundfile", "rich", "click", "matplotlib", "pygraphviz"}
    optional |= {"kaldi_native_fbank", "kaldi_decoder"}
    code = (  # names of the commands' layer need an extra
        "import sys, fsachain; [getattr(fsachain, n) for n, home in fsachain._HOME_OF.items() if '.cli.' not in home]; "
        "print(*sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not optional & set(output.stdout.split())
