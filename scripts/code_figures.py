"""Print metrics of the source tree for the limits of the house rules: sizes of files, functions and classes.

python scripts/code_figures.py                 all packages together, as a table
python scripts/code_figures.py --by-package    a row for each import package
python scripts/code_figures.py --list NAME     the places behind one figure (--help names them)

An attribute counts as assigned from outside unless its object is `self`, `cls` or one that the same function has made
by calling a class (a builder may finish what it builds). A file counts as imported once if exactly one other file of
the source imports it, type-only imports included, and if it is no package's `__init__` and no entry point.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS: Final = ("broker/src", "operator/src", "pipelines/src")
LONG_FILE_LINES: Final = 450
"""A file with more lines counts as long."""

METHODS_MAX: Final = 15
"""A class with more methods counts as wide."""

LISTS: Final = ("long-files", "imported-once", "wide-classes", "outside")
"""The figures whose places `--list` prints."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """The metrics of one source file."""

    name: str
    path: Path
    lines: int
    imports: set[str]
    """The imported names with dots; for `from a import b` both `a` and `a.b`."""

    function_lines: list[int] = field(default_factory=list)
    """The number of lines of each function."""

    wide_classes: list[str] = field(default_factory=list)
    """The classes with more than METHODS_MAX methods, with their lines."""

    outside: list[str] = field(default_factory=list)
    """The assignments to attributes of other objects, with their lines."""


def functions_in(node: ast.AST) -> Iterator[Function]:
    """Yield every function below a node, including nested ones."""
    for child in ast.walk(node):
        if isinstance(child, Function):
            yield child


def imports_in(tree: ast.Module) -> set[str]:
    """Return the dotted names that a file imports, also inside of functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def new_objects_in(function: Function) -> set[str]:
    """Return the names that a function binds to a new object, the result of calling a capitalized name."""

    def is_class(call: ast.Call) -> bool:
        return ast.unparse(call.func).rpartition(".")[2].lstrip("_")[:1].isupper()

    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call) and is_class(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def assigned_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that an assignment sets, also inside of a tuple."""
    targets: Sequence[ast.expr] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = (node.target,)
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple) else (target,):
            if isinstance(part, ast.Attribute):
                yield part


def outside_assignments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each assignment to an attribute of another object."""
    seen: set[int] = set()
    for function in functions_in(tree):
        own = {"self", "cls", *new_objects_in(function)}
        for node in ast.walk(function):
            for attribute in assigned_attributes(node):
                owner = attribute.value
                if id(attribute) in seen or (isinstance(owner, ast.Name) and owner.id in own):
                    continue
                seen.add(id(attribute))
                yield attribute.lineno, ast.unparse(attribute)


def read_module(root: Path, folder: str, path: Path) -> Module:
    """Return the metrics of one file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    parts = path.relative_to(root / folder).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = Module(name, path.relative_to(root), text.count("\n"), imports_in(tree))
    module.function_lines = [(one.end_lineno or one.lineno) - one.lineno + 1 for one in functions_in(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(item, Function) for item in node.body)
            if methods > METHODS_MAX:
                module.wide_classes.append(f"{module.path}:{node.lineno} {node.name} {methods}")
    module.outside = [f"{module.path}:{line} {text}" for line, text in outside_assignments(tree)]
    return module


def read_tree(root: Path) -> list[Module]:
    """Return the metrics of all source files; tests and the test kit are excluded."""
    return [
        read_module(root, folder, path) for folder in SOURCE_FOLDERS for path in sorted((root / folder).rglob("*.py"))
    ]


def imported_once(modules: Sequence[Module]) -> list[str]:
    """Return the files that exactly one other file imports."""
    importers: Counter[str] = Counter(name for module in modules for name in module.imports - {module.name})
    return [
        f"{module.path} {module.lines}"
        for module in modules
        if importers[module.name] == 1 and module.path.name not in ("__init__.py", "__main__.py")
    ]


def row_of(title: str, modules: Sequence[Module], once: Sequence[str]) -> list[str]:
    """Return the metrics of some modules as the cells of a table row."""
    functions = [lines for module in modules for lines in module.function_lines]
    paths = {str(module.path) for module in modules}
    return [
        title,
        f"{sum(module.lines for module in modules):,}",
        f"{len(modules):,}",
        f"{sum(functions) / max(len(functions), 1):.1f}",
        f"{max(functions, default=0)}",
        f"{max((module.lines for module in modules), default=0)}",
        f"{sum(module.lines > LONG_FILE_LINES for module in modules)}",
        f"{sum(entry.split()[0] in paths for entry in once)}",
        f"{sum(len(module.wide_classes) for module in modules)}",
        f"{sum(len(module.outside) for module in modules)}",
    ]


HEADER: Final = (
    "package", "lines", "files", "mean function", "longest function", "longest file", f"files over {LONG_FILE_LINES}",
    "files imported once", f"classes over {METHODS_MAX} methods", "attributes assigned from outside",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the requested table or list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="another tree of the same layout")
    parser.add_argument("--by-package", action="store_true", help="a row for each import package")
    parser.add_argument("--list", choices=LISTS, help="the places behind one figure")
    options = parser.parse_args(arguments)
    modules = read_tree(options.root)
    once = imported_once(modules)
    if options.list is not None:
        places = {
            "long-files": [f"{one.path} {one.lines}" for one in modules if one.lines > LONG_FILE_LINES],
            "imported-once": once,
            "wide-classes": [text for one in modules for text in one.wide_classes],
            "outside": [text for one in modules for text in one.outside],
        }
        print("\n".join(places[options.list]))
        return 0
    rows = [list(HEADER)]
    if options.by_package:
        for name in sorted({module.name.partition(".")[0] for module in modules}):
            rows.append(row_of(name, [one for one in modules if one.name.partition(".")[0] == name], once))
    rows.append(row_of("all", modules, once))
    for number, row in enumerate(rows):
        print("| " + " | ".join(row) + " |")
        if number == 0:
            print("|" + "---|" * len(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
