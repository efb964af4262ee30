"""`make size`: lines and files of each folder, its largest file, how deep its imports go, and a circle of imports."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tools import ROOT

COUNTED = {".py", ".cu", ".cuh", ".h", ".cc", ".md"}
TOPS = "fsachain", "kernels", "tests", "tools", "recipes", "docs"


def tracked() -> dict[Path, str]:
    """The texts of the files that git tracks and that are still there, in the folders that count."""
    names = subprocess.run(["git", "ls-files", *TOPS], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (Path(name) for name in names.stdout.splitlines())
    found = (path for path in paths if path.suffix in COUNTED and (ROOT / path).is_file())
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in found}


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(texts: dict[Path, str]) -> dict[str, set[str]]:
    """What each module of the package imports from it, inside functions too, but for type checkers alone."""
    modules = {module_of(path): text for path, text in texts.items()}
    modules.pop("fsachain", None)  # the facade imports everything, each name on first use
    found = {}
    for module, text in modules.items():
        nodes, names = [ast.parse(text)], set()
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            nodes += ast.iter_child_nodes(node)
        found[module] = names & modules.keys() - {module}
    return found


def main() -> None:
    texts = tracked()
    package = {
        path: text for path, text in texts.items() if path.suffix == ".py" and path.parts[0] == "fsachain"
    }
    graph, depth, circle = imports(package), {}, []
    try:
        for module in TopologicalSorter(graph).static_order():
            depth[module] = 1 + max((depth[below] for below in graph[module]), default=0)
    except CycleError as error:
        circle = error.args[1]
    rows: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for path, text in texts.items():
        for folder in {path.parts[0], str(path.parent)}:
            rows[folder].append((text.count("\n"), path))
    print(f"{'folder':34} {'lines':>7} {'files':>6} {'imports':>8}  largest file")
    for folder, files in sorted(rows.items()):
        deep = max(depth.get(module_of(path), 0) for _, path in files) or ""
        size, largest = max(files)
        print(f"{folder:34} {sum(n for n, _ in files):7} {len(files):6} {deep:>8}  {largest.name} {size}")
    print("circle of imports:", " -> ".join(circle) or "none")


if __name__ == "__main__":
    main()
