"""A server starts no program, so no setting and no name that comes over the wire can be one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
SERVERS = (
    "gantry_wire", "gantry_remoting", "gantry_access", "gantry_status", "gantry_store_files", "gantry_broker",
    "gantry_nameserver",
)  # fmt: skip
UNSAFE_MODULES = frozenset({"subprocess", "pty", "multiprocessing", "runpy", "pickle", "marshal", "shelve"})
UNSAFE_CALLS = frozenset(
    {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe",
     "execl", "execle", "execlp", "execlpe", "spawnl", "spawnle", "spawnlp", "spawnv", "spawnve", "spawnvp", "spawnvpe",
     "create_subprocess_exec", "create_subprocess_shell", "eval", "exec", "__import__"}
)  # fmt: skip


def find_unsafe(text: str) -> list[str]:
    """Return the imports and calls of a module that could start a program, or execute text or loaded data."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found += [name] if name in UNSAFE_CALLS else []
    return found


@pytest.mark.parametrize("package", SERVERS)
def test_no_server_module_starts_a_program(package: str) -> None:
    """S7: RocketMQ's published hole was a setting that became part of a command line."""
    modules = sorted((SOURCE / package).rglob("*.py"))

    assert modules
    assert {str(path): found for path in modules if (found := find_unsafe(path.read_text()))} == {}


@pytest.mark.parametrize(
    "text",
    ["import subprocess", "from subprocess import run", "import os\nos.system(x)", "eval(x)",
     "import asyncio\nasyncio.create_subprocess_exec(x)", "os.execvp(x)", "import pickle"],
)  # fmt: skip
def test_module_that_starts_a_program_is_found(text: str) -> None:
    """S7's twin: the check above can find a violation."""
    assert find_unsafe(text)
