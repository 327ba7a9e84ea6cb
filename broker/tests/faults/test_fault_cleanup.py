"""The suite leaves no mount and no loop device behind, however it ends, since root runs it on real machines."""

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
    """Return the images behind the loop devices of this machine."""
    found = set()
    for path in LOOPS.glob("loop*/loop/backing_file"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue  # It is being removed at this moment.
    return found


def test_a_failing_test_leaves_no_mount(tmp_path: Path) -> None:
    """An exception inside unmounts the disk."""
    with pytest.raises(ZeroDivisionError), loop_disk(tmp_path, size_mib=16) as disk:
        assert str(disk.path) in MOUNTS.read_text()
        assert str(disk.image) in images_in_use()
        raise ZeroDivisionError

    assert str(tmp_path) not in MOUNTS.read_text()
    assert str(disk.image) not in images_in_use()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_run_that_is_ended_leaves_no_mount(number: signal.Signals, tmp_path: Path) -> None:
    """For each signal the kernel releases mount and loop device, and the image is not held."""
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
    """Wait until the kernel has unmounted a namespace, which takes a moment after its last process."""
    deadline = time.monotonic() + 120
    while image in images_in_use():
        assert time.monotonic() < deadline, f"{image} is still held"
        time.sleep(0.01)
