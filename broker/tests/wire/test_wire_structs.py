"""Struct classes that were prepared can be decoded by any number of threads at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import pytest

from gantry_wire import structs
from gantry_wire.commands.pull import PullMessage
from gantry_wire.structs import make_structs_ready

MANY_THREADS = """
import sys, threading, msgspec
from gantry_wire.structs import make_structs_ready
for number in range(300):
    exec(f'''
class A{number}(msgspec.Struct):
    a: int
    b: list[int]
class B{number}(msgspec.Struct):
    x: list[A{number}]
    y: "A{number} | None" = None
''')
kinds = [globals()[f"B{number}"] for number in range(300)]
if sys.argv[1] == "ready":
    make_structs_ready()
sys.setswitchinterval(1e-6)
together = threading.Barrier(8)
def work():
    together.wait()
    if sys.argv[1] == "each":
        make_structs_ready()
    for kind in kinds:
        msgspec.json.decode(b'{"x": [{"a": 1, "b": [1]}]}', type=kind)
threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
print("all read")
"""


@pytest.mark.parametrize("prepare", ["ready", "each"])
def test_threads_decode_prepared_classes_concurrently(prepare: str) -> None:
    """Threads decode what one thread, or each of them at the same time, has prepared.

    Without any preparation msgspec 0.22 crashes in two runs of three; with preparations that overlap, in one of three.
    """
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", MANY_THREADS, prepare], capture_output=True, text=True, timeout=120
        )

        assert (done.returncode, done.stdout) == (0, "all read\n"), done.stderr


def test_concurrent_preparations_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one thread at a time has classes inspected, and no thread returns before all are."""

    class First(msgspec.Struct):
        pass

    class Second(msgspec.Struct):
        pass

    both_prepare = threading.Barrier(2)
    inspected: list[type] = []

    def prepare(struct_class: type) -> None:
        with suppress(threading.BrokenBarrierError):
            both_prepare.wait(0.1)
        inspected.append(struct_class)

    monkeypatch.setattr(structs, "_prepare", prepare)
    with ThreadPoolExecutor(2) as threads:
        preparations = [threads.submit(make_structs_ready, First, Second) for _ in range(2)]
        counts = sorted(preparation.result(timeout=60) for preparation in preparations)

    assert both_prepare.broken, "expected one thread at a time"
    assert counts == [0, 2] and sorted(one.__name__ for one in inspected) == ["First", "Second"]


def test_every_class_is_prepared_once() -> None:
    """This includes classes that are defined later, or below a prepared class."""
    make_structs_ready()
    assert make_structs_ready() == 0

    class Later(PullMessage):
        more: int = 0

    class Unknown(msgspec.Struct):
        what: UndefinedCommand  # type: ignore[name-defined]  # noqa: F821

    assert make_structs_ready(Later) == 1
    assert make_structs_ready() == 1, "expected to count the class that cannot be decoded, without an error"
