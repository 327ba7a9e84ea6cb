"""The shape of the repository: folders, names and files that later work must not change by accident.

Each rule is a function of a folder, so that every rule is also shown to catch its own violation on a small tree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry_testing.tree import ROOT

TOP_FOLDERS = ("operator", "broker", "pipelines", "e2e", "bench", "scripts")
SOURCE_FOLDERS = ("broker/src", "broker/testkit", "operator/src", "pipelines/src")


def python_files(root: Path) -> Iterator[Path]:
    """Our Python files; build products are not ours."""
    for folder in TOP_FOLDERS:
        for path in sorted((root / folder).glob("**/*.py")):
            if "target" not in path.relative_to(root).parts:
                yield path


def misplaced_init_files(root: Path) -> list[str]:
    """`__init__.py` files that would make a package of a top-level folder or of a folder of tests."""
    found = [path.relative_to(root) for path in python_files(root) if path.name == "__init__.py"]
    return [str(path) for path in found if len(path.parts) == 2 or "tests" in path.parts]


def packages_without_marker(root: Path) -> list[str]:
    """Folders of modules below a src folder without `__init__.py`, and import packages without `py.typed`."""
    missing = set()
    for folder in SOURCE_FOLDERS:
        for path in (root / folder).glob("**/*.py"):
            if not (path.parent / "__init__.py").is_file():
                missing.add(path.parent / "__init__.py")
            package = root / folder / path.relative_to(root / folder).parts[0]
            if not (package / "py.typed").is_file():
                missing.add(package / "py.typed")
    return sorted(str(path.relative_to(root)) for path in missing)


def repeated_test_names(root: Path) -> list[str]:
    """Base names that two test files share; pytest in prepend mode would import one for the other."""
    names = Counter(path.name for path in python_files(root) if path.name.startswith("test_"))
    return sorted(name for name, count in names.items() if count > 1)


def shadowed_test_folders(root: Path) -> list[str]:
    """Modules in a folder of tests that hide a folder of the same name in `tests` from imports.

    Pytest puts the folder of each test file first on the path, so `import faults` would find the module.
    """
    return [
        str(path.relative_to(root))
        for folder in TOP_FOLDERS
        for path in sorted((root / folder / "tests").glob("*/*.py"))
        if any((root / folder / "tests" / path.stem).glob("*.py"))
    ]


def shell_calls(source: str) -> list[int]:
    """Lines of calls that hand a string to a shell."""
    lines: list[int] = []
    if not re.search(r"shell|os\.(system|popen)|get(status)?output", source):
        return lines  # nothing to be looked for in a tree, which takes long for all files
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}:
            lines.append(node.lineno)
        for keyword in node.keywords:
            is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "shell" and not is_false:
                lines.append(node.lineno)
        if name.endswith("create_subprocess_shell"):
            lines.append(node.lineno)
    return lines


def operator_module_file(root: Path) -> str:
    """Return the file of `import operator` in a fresh interpreter whose path begins with our folders."""
    folders = [str(root), *(str(root / folder) for folder in TOP_FOLDERS)]
    program = (
        "import sys; sys.modules.pop('operator', None); sys.path[:0] = sys.argv[1:];"
        "import operator; print(operator.__file__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *folders], cwd=root, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def write(path: Path, text: str = "") -> None:
    """A file, and the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_no_top_folder_is_a_package() -> None:
    """No `__init__.py` lies directly in a top-level folder or in any folder of tests."""
    assert misplaced_init_files(ROOT) == []


def test_a_package_at_the_top_is_caught(tmp_path: Path) -> None:
    """The guard names exactly the files that break the rule."""
    for name in ("operator/__init__.py", "broker/tests/__init__.py", "broker/tests/store/__init__.py"):
        write(tmp_path / name)
    write(tmp_path / "broker/src/gantry_wire/__init__.py")

    assert sorted(misplaced_init_files(tmp_path)) == [
        "broker/tests/__init__.py",
        "broker/tests/store/__init__.py",
        "operator/__init__.py",
    ]


def test_operator_is_the_standard_library() -> None:
    """With the repository and each of its folders first on the path, `import operator` finds Python's own."""
    assert operator_module_file(ROOT) == operator_module_file(Path(sys.prefix))
    assert not operator_module_file(ROOT).startswith(str(ROOT))


def test_an_operator_package_would_shadow_it(tmp_path: Path) -> None:
    """The guard is not vain: one `__init__.py` in that folder is all it takes."""
    write(tmp_path / "operator/__init__.py")

    assert operator_module_file(tmp_path).startswith(str(tmp_path))


def test_every_package_is_a_typed_package() -> None:
    """Every folder of modules has `__init__.py`, so that the import contracts see it, and ships its types."""
    assert packages_without_marker(ROOT) == []


def test_an_unmarked_package_is_caught(tmp_path: Path) -> None:
    """Both marks are asked for."""
    write(tmp_path / "broker/src/gantry_new/floor/module.py")

    assert packages_without_marker(tmp_path) == [
        "broker/src/gantry_new/floor/__init__.py",
        "broker/src/gantry_new/py.typed",
    ]


def test_test_file_names_are_unique() -> None:
    """No two test files of the repository share a base name."""
    assert repeated_test_names(ROOT) == []


def test_a_repeated_test_name_is_caught(tmp_path: Path) -> None:
    """The folder does not make a name unique."""
    write(tmp_path / "broker/tests/test_same.py")
    write(tmp_path / "operator/tests/test_same.py")

    assert repeated_test_names(tmp_path) == ["test_same.py"]


def test_no_module_of_a_test_folder_hides_another_test_folder() -> None:
    """A program that a test starts got the wrong `faults`, if other tests were collected before it."""
    assert shadowed_test_folders(ROOT) == []


def test_a_module_that_hides_a_folder_is_caught(tmp_path: Path) -> None:
    """The module `mutations/faults.py` hides the folder `faults/`."""
    for name in ("faults/test_one.py", "faults/power.py", "mutations/faults.py"):
        path = tmp_path / "broker/tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    assert shadowed_test_folders(tmp_path) == ["broker/tests/mutations/faults.py"]


def test_no_command_goes_through_a_shell() -> None:
    """Commands are lists of words; nothing of ours hands a string to a shell."""
    found = {str(path.relative_to(ROOT)): shell_calls(path.read_text()) for path in python_files(ROOT)}

    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("subprocess.run(x, shell=True)", [1]),
        ("subprocess.run(x, shell=flag)", [1]),
        ("subprocess.run(x, shell=False)", []),
        ("\nos.system(x)", [2]),
        ("asyncio.create_subprocess_shell(x)", [1]),
        ("asyncio.create_subprocess_exec(x)", []),
    ],
)
def test_a_shell_call_is_caught(source: str, lines: list[int]) -> None:
    """Every way into a shell counts, a variable flag included."""
    assert shell_calls(source) == lines
