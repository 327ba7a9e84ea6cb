"""`broker/LOCKS.md` and the code name the same threads and the same locks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gantry_testing.tree import ROOT

PACKAGES: Final = ("gantry_broker", "gantry_remoting", "gantry_access", "gantry_status", "gantry_wire")
"""The packages of a broker's process that may have threads or locks."""
ELSEWHERE: Final = {"OrderClient", "ConsoleSessions"}
"""Classes of these packages that no broker uses."""
PAGE: Final = ROOT / "broker/LOCKS.md"
THREADS: Final = {"Thread", "ThreadPoolExecutor", "Worker"}
LOCKS: Final = {"Lock", "RLock", "Condition", "Semaphore"}


def calls_of(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    """The calls of these names, with or without a module before them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in names:
                yield node


def threads_of(tree: ast.AST) -> set[str]:
    """The names of the threads that a module starts; `?` for a thread that bears none of ours."""
    found: set[str] = set()
    for call in calls_of(tree, THREADS):
        named = [
            one for one in ast.walk(call) if isinstance(one, ast.Constant) and str(one.value).startswith("gantry-")
        ]
        is_handed_on = any(ast.unparse(word.value) == "self._name" for word in call.keywords)
        found |= {str(one.value) for one in named} or (set() if is_handed_on else {"?"})
    return found


def lock_owners_of(tree: ast.AST) -> set[str]:
    """The classes that make a lock; `?` for a lock that no class owns."""
    in_classes = {
        call: node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for call in calls_of(node, LOCKS)
    }
    return {in_classes.get(call, "?") for call in calls_of(tree, LOCKS)}


def sources() -> Iterator[ast.AST]:
    for package in PACKAGES:
        for path in sorted((ROOT / "broker/src" / package).rglob("*.py")):
            yield ast.parse(path.read_text())


def section(page: Path, heading: str) -> str:
    """A part of the page, from its heading to the next one."""
    return page.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_locks_md_names_every_thread() -> None:
    """And none that is gone."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(gantry-[a-z-]+)`", row)}

    assert set().union(*map(threads_of, sources())) == named


def test_locks_md_names_every_lock() -> None:
    """By the class that owns it, between threads or between tasks of the loop."""
    text = section(PAGE, "Locks between threads") + section(PAGE, "Locks between tasks of the loop")
    named = {name for line in text.splitlines() if line[:1].isdigit() for name in re.findall(r"`([A-Z]\w+)`", line)}

    assert set().union(*map(lock_owners_of, sources())) - ELSEWHERE == named


def test_a_thread_or_lock_that_is_not_named_is_caught() -> None:
    """The scan recognises how threads and locks are made here, and reports those without a name."""
    tree = ast.parse(
        "class A:\n def f(self):\n  self.a = asyncio.Lock()\n  threading.Thread(target=f, name='gantry-new')\n"
        "  Worker('gantry-old', 5, f)\n  ThreadPoolExecutor(1, 'gantry-pool')\nb = threading.Lock()\nThread(target=f)"
    )

    assert threads_of(tree) == {"gantry-new", "gantry-old", "gantry-pool", "?"}
    assert lock_owners_of(tree) == {"A", "?"}
