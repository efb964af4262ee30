"""`make size`: lines and files of each folder, its largest file, how deep its imports go, and circles of imports."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTED = {".py", ".cu", ".cuh", ".h", ".cc", ".md"}
TOPS = ("fsachain", "kernels", "tests", "tools", "recipes", "docs")


def tracked() -> list[Path]:
    """Files that git tracks and that are still there, in the folders that count."""
    names = subprocess.run(["git", "ls-files", *TOPS], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [Path(name) for name in names.stdout.splitlines()]
    return [path for path in paths if path.suffix in COUNTED and (ROOT / path).is_file()]


def imports(paths: list[Path]) -> dict[str, set[str]]:
    """What each module of the package imports from it, inside functions too, but for type checkers alone."""
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        skipped = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        names = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped
            for alias in node.names
            for name in (f"{node.module}.{alias.name}", node.module)
        }
        found[module] = {name for name in names if name in modules and name != module and name != "fsachain"}
    found.pop("fsachain", None)  # the facade imports everything, each name on first use
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Circles of imports; each is found once, with one of its modules taken out of the rest."""
    graph, found = {module: set(below) for module, below in graph.items()}, []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(error.args[1])
            graph.pop(error.args[1][0])
        else:
            return found


def main() -> None:
    paths = tracked()
    graph = imports([path for path in paths if path.suffix == ".py" and path.parts[0] == "fsachain"])
    round_trips = circles(graph)
    depth: dict[str, int] = {}
    if not round_trips:
        for module in TopologicalSorter(graph).static_order():
            depth[module] = 1 + max((depth.get(below, 0) for below in graph.get(module, ())), default=0)
    rows: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for path in paths:
        lines = (ROOT / path).read_bytes().count(b"\n")
        for folder in {path.parts[0], str(path.parent)}:
            rows[folder].append((lines, path))
    print(f"{'folder':34} {'lines':>7} {'files':>6} {'imports':>8}  largest file")
    for folder in sorted(rows):
        files = rows[folder]
        modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for _, path in files]
        deep = max((depth.get(module, 0) for module in modules), default=0) or ""
        size, largest = max(files)
        print(f"{folder:34} {sum(n for n, _ in files):7} {len(files):6} {deep:>8}  {largest.name} {size}")
    print(
        f"circles of imports: {len(round_trips)}",
        *(" -> ".join(circle) for circle in round_trips),
        sep="\n  ",
    )


if __name__ == "__main__":
    main()
