"""Struct classes that are worked out beforehand can be read by any number of threads at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from gantry_wire.commands.pull import PullMessage
from gantry_wire.structs import ready_structs

MANY_THREADS = """
import sys, threading, msgspec
from gantry_wire.structs import ready_structs
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
    ready_structs()
sys.setswitchinterval(1e-6)
together = threading.Barrier(8)
def work():
    together.wait()
    for kind in kinds:
        msgspec.json.decode(b'{"x": [{"a": 1, "b": [1]}]}', type=kind)
threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
print("all read")
"""


def test_eight_threads_read_three_hundred_new_classes_at_once() -> None:
    """With all of them worked out first nothing happens; without, msgspec 0.22 dies of it in two runs of three."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", MANY_THREADS, "ready"], capture_output=True, text=True, timeout=120
        )

        assert (done.returncode, done.stdout) == (0, "all read\n"), done.stderr


def test_every_class_that_is_defined_is_worked_out_once() -> None:
    """Also those that are defined later, or below a class that is known."""
    ready_structs()
    assert ready_structs() == 0

    class Later(PullMessage):
        more: int = 0

    class Unknown(msgspec.Struct):
        what: NobodyDefinedThis  # type: ignore[name-defined]  # noqa: F821

    assert ready_structs(Later) == 1
    assert ready_structs() == 1, "a class that nobody can read is passed over"
