"""The suite leaves nothing behind, however it ends: no mount and no loop device. It is run by root on real machines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.loop_disk import MOUNTS, loop_disk

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_loop]

LOOPS = Path("/sys/block")
WAITING = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from faults.loop_disk import loop_disk

with loop_disk(Path(sys.argv[1]), size_mib=16) as disk:
    (disk.path / "file").write_text("here")
    print("mounted", flush=True)
    time.sleep(600)
"""


def images_in_use() -> set[str]:
    """What the loop devices of this machine stand for."""
    found = set()
    for path in LOOPS.glob("loop*/loop/backing_file"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue  # taken away at this moment
    return found


def test_a_failing_test_leaves_no_mount(tmp_path: Path) -> None:
    """An exception inside is an unmounted disk outside."""
    with pytest.raises(ZeroDivisionError), loop_disk(tmp_path, size_mib=16) as disk:
        assert str(disk.path) in MOUNTS.read_text()
        assert str(disk.image) in images_in_use()
        raise ZeroDivisionError

    assert str(tmp_path) not in MOUNTS.read_text()
    assert str(disk.image) not in images_in_use()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_run_that_is_ended_leaves_no_mount(number: signal.Signals, tmp_path: Path) -> None:
    """Whichever signal it was, the kernel gives mount and loop device back, and the image is not held."""
    command = [sys.executable, "-c", WAITING, str(tmp_path), *[path for path in sys.path if path]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "mounted\n"
        assert str(tmp_path / "disk.img") in images_in_use()

        os.kill(run.pid, number)
        try:
            assert run.wait(180) != 0
        finally:
            run.kill()
    assert str(tmp_path) not in MOUNTS.read_text()
    until_gone(str(tmp_path / "disk.img"))


def until_gone(image: str) -> None:
    """The kernel unmounts a namespace that nobody is in any more a moment after its last process."""
    deadline = time.monotonic() + 120
    while image in images_in_use():
        assert time.monotonic() < deadline, f"{image} is still held"
        time.sleep(0.01)
