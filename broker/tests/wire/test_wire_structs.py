"""Struct classes that were prepared can be decoded by any number of threads at once."""

from __future__ import annotations

import subprocess
import sys

import msgspec

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
    for kind in kinds:
        msgspec.json.decode(b'{"x": [{"a": 1, "b": [1]}]}', type=kind)
threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
print("all read")
"""


def test_threads_decode_prepared_classes_concurrently() -> None:
    """With all classes prepared nothing happens; without that, msgspec 0.22 crashes in two runs of three."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", MANY_THREADS, "ready"], capture_output=True, text=True, timeout=120
        )

        assert (done.returncode, done.stdout) == (0, "all read\n"), done.stderr


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
