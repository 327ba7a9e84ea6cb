"""The ports that tests give their servers."""

import subprocess
import sys
from typing import Final

import pytest

from gantry_testing import ports

CHOOSE_PORTS_PROGRAM: Final = """
import random
from gantry_testing import ports
ports._RANDOM = random.Random(1)
print(*(ports.free_broker_port() for _ in range(20)), flush=True)
input()
"""


def test_two_runs_at_the_same_time_choose_no_port_twice() -> None:
    """Neither listens on any of them yet, and both draw the same numbers."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", CHOOSE_PORTS_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    chosen: list[str] = []
    for run in runs:
        assert run.stdout is not None
        chosen += run.stdout.readline().split()
    for run in runs:
        run.communicate("\n")

    assert len(chosen) == 40
    assert len(set(chosen)) == 40


def test_a_chosen_port_is_free_again_when_many_others_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chosen port is not chosen again until many others have been chosen."""
    port = ports.free_port()

    def choose_it() -> int:
        with monkeypatch.context() as only:
            only.setattr(ports, "FIRST", port)
            only.setattr(ports, "END", port + 2)
            return ports.free_port()

    with pytest.raises(OSError, match="no 1 consecutive free ports"):
        choose_it()
    for _ in range(ports.CHOSEN_MAX):
        ports.free_port()

    assert choose_it() == port
