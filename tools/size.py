"""`make size`: how much code each folder has, how dense it is, how deep its imports go, and circles of imports.

lines        newlines, the figure that earlier notes give
code         lines with code: no blank lines, no comments, no docstrings
tokens       tokens of Python a code line: names, numbers, strings, operators
comments     comments per 100 code lines
parallel     share of assignments that give several names values at once (`a, b = 1, 2`), in per cent
imports      the longest chain of imports inside the package that begins in the folder
private      names of the library that the application imports although `fsachain` does not export them (last line)
"""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tools import ROOT

COUNTED = {".py", ".cu", ".cuh", ".h", ".cc", ".md"}
TOPS = "fsachain", "kernels", "tests", "tools", "recipes", "docs"
APPLICATION = "fsachain.asr"
_LAYOUT = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Density:
    """Counts of one Python file, which add up."""

    code_lines: int = 0
    tokens: int = 0
    comments: int = 0
    assignments: int = 0
    parallel: int = 0

    def __add__(self, other: Density) -> Density:
        return Density(
            self.code_lines + other.code_lines,
            self.tokens + other.tokens,
            self.comments + other.comments,
            self.assignments + other.assignments,
            self.parallel + other.parallel,
        )

    def columns(self) -> str:
        """Code lines, tokens a code line, comments per 100 code lines, per cent of parallel assignments."""
        if not self.code_lines:
            return f"{'':7} {'':6} {'':8} {'':8}"
        tokens = self.tokens / self.code_lines
        comments = 100 * self.comments / self.code_lines
        parallel = 100 * self.parallel / max(self.assignments, 1)
        return f"{self.code_lines:7} {tokens:6.1f} {comments:8.1f} {parallel:7.1f}%"


def density_of(text: str) -> Density:
    """Count one file of Python."""
    tree = ast.parse(text)
    documented = _docstring_lines(tree)
    lines: set[int] = set()
    num_tokens = 0
    num_comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            num_comments += 1
        elif token.type not in _LAYOUT and token.start[0] not in documented:
            num_tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    parallel = [node for node in assignments if _is_parallel(node)]
    return Density(len(lines), num_tokens, num_comments, len(assignments), len(parallel))


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        first = body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if is_text and isinstance(first.value.value, str):
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def _is_parallel(node: ast.Assign) -> bool:
    """Whether several names get several values, written side by side. Taking one result apart is one thing."""
    sides = (*node.targets, node.value)
    return all(isinstance(side, ast.Tuple) for side in sides)


def tracked() -> dict[Path, str]:
    """Return the texts of the files that git tracks and that are still there, in the folders that count."""
    names = subprocess.run(["git", "ls-files", *TOPS], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [Path(name) for name in names.stdout.splitlines()]
    counted = [path for path in paths if path.suffix in COUNTED and (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in counted}


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def is_application(module: str) -> bool:
    return module == "fsachain.__main__" or f"{module}.".startswith(f"{APPLICATION}.")


def imported_names(text: str) -> set[str]:
    """Return everything that a module imports from others, inside functions too, but for type checkers alone."""
    nodes: list[ast.AST] = [ast.parse(text)]
    names: set[str] = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        nodes.extend(ast.iter_child_nodes(node))
    return names


def imports(texts: dict[Path, str]) -> dict[str, set[str]]:
    """Return which modules of the package each of its modules imports."""
    modules = {module_of(path): text for path, text in texts.items()}
    modules.pop("fsachain", None)  # the facade imports everything, each name on first use
    graph = {}
    for module, text in modules.items():
        names = imported_names(text)
        targets = names | {name.rpartition(".")[0] for name in names}
        graph[module] = targets & modules.keys() - {module}
    return graph


def exported_names() -> set[str]:
    """Return the names that `fsachain` exports, read from its table without importing it."""
    tree = ast.parse((ROOT / "fsachain" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES":
            return {name for names in ast.literal_eval(node.value).values() for name in names.split()}
    raise LookupError("fsachain/__init__.py has no table _NAMES")


def private_names(texts: dict[Path, str]) -> dict[str, set[str]]:
    """Return the names of the library, not exported, that the application imports, and by which modules.

    A module whose own `__all__` lists the name shares it on purpose: such a name is not private.
    """
    modules = {module_of(path): text for path, text in texts.items()}
    exported = exported_names()
    users: dict[str, set[str]] = defaultdict(set)
    for module, text in modules.items():
        if not is_application(module):
            continue
        for name in imported_names(text):
            home, _, own_name = name.rpartition(".")
            is_library = (
                name.startswith("fsachain.") and not is_application(home) and not is_application(name)
            )
            shared = (
                exported | shared_names(modules[home]) if home in modules and home != "fsachain" else exported
            )
            if is_library and own_name not in shared:
                users[name].add(module)
    return users


def shared_names(text: str) -> set[str]:
    """Return the names in a module's `__all__`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def depths(graph: dict[str, set[str]]) -> tuple[dict[str, int], list[str]]:
    """Return the length of the longest chain of imports from each module, and a circle, if there is one."""
    depth: dict[str, int] = {}
    try:
        for module in TopologicalSorter(graph).static_order():
            depth[module] = 1 + max((depth[below] for below in graph[module]), default=0)
    except CycleError as error:
        return depth, list(error.args[1])
    return depth, []


def rows_of(path: Path) -> Iterable[str]:
    """Return the rows in which a file is counted."""
    yield from {path.parts[0], str(path.parent)}
    if path.parts[0] == "fsachain":
        yield "fsachain: application" if is_application(module_of(path)) else "fsachain: library"
    if path.parts[0] == "kernels" and path.suffix == ".py":
        yield "fsachain: library"


def main() -> None:
    texts = tracked()
    package = {
        path: text for path, text in texts.items() if path.suffix == ".py" and path.parts[0] == "fsachain"
    }
    depth, circle = depths(imports(package))
    rows: dict[str, list[Path]] = defaultdict(list)
    for path in texts:
        for row in rows_of(path):
            rows[row].append(path)
    densities = {path: density_of(text) for path, text in texts.items() if path.suffix == ".py"}
    print(
        f"{'folder':34} {'lines':>7} {'files':>6} {'code':>7} {'tokens':>6} {'comments':>8} {'parallel':>8} {'imports':>8}"
    )
    for row, paths in sorted(rows.items()):
        num_lines = sum(texts[path].count("\n") for path in paths)
        density = sum((densities.get(path, Density()) for path in paths), Density())
        deepest = max(depth.get(module_of(path), 0) for path in paths) or ""
        print(f"{row:34} {num_lines:7} {len(paths):6} {density.columns()} {deepest:>8}")
    print("circle of imports:", " -> ".join(circle) or "none")
    print(f"private names of the library that the application uses: {len(private_names(package))}")


if __name__ == "__main__":
    main()
