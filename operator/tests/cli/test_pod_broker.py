"""`gantry pod broker` with a real broker: its member by the pod's name, a restart after a kill, a clean stop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantry_status import PageReader, Phase, StatusPageError
from gantry_testing.ports import free_ports

BROKER_CONF = """
brokerClusterName=orders
brokerName=orders-0
bindAddress=127.0.0.1
fastListenPort=-1
storePathRootDir={folder}/store
statusPagePath={folder}/run/status
controlSocketPath={folder}/run/control.sock
roleAtStart=UNASSIGNED
brokerRole=SYNC_MASTER
mappedFileSizeCommitLog=8388608
listenPort={port}
haListenPort={ha}
"""


class Pod:
    """The pod of one broker, without its container."""

    def __init__(self, folder: Path, stall_timeout_s: int) -> None:
        """Start the pod; its broker is killed after its page has stayed the same for ``stall_timeout_s``."""
        self.folder = folder
        port, ha, self.alive = free_ports(3)
        (folder / "run").mkdir()
        known = {"orders-0-slave-1": "127.0.0.1", "orders-0": "127.0.0.9"}
        (folder / "run" / "addresses.json").write_text(json.dumps(known))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gantry_cli", "pod", "broker", "--run", f"{folder}/run", "--alive", str(self.alive),
             "--stall-timeout", str(stall_timeout_s)],
            env={
                **os.environ,
                "POD_NAME": "orders-0-slave-1",
                "POD_NAMESPACE": "shop",
                "POD_UID": "11-22",
                "GANTRY_BROKER_CONF": BROKER_CONF.format(folder=folder, port=port, ha=ha),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def wait_for(self, phase: Phase, other_than: int = 0) -> int:
        """Wait until the page of another process than ``other_than`` has this phase; return that process."""
        deadline = time.monotonic() + 180
        while True:
            with contextlib.suppress(StatusPageError), PageReader(str(self.folder / "run" / "status")) as reader:
                found = reader.read()
                if found.status.phase is phase and found.origin.pid != other_than:
                    return found.origin.pid
            assert time.monotonic() < deadline, f"no process reached {phase}"
            time.sleep(0.02)


@pytest.fixture
def pod(tmp_path: Path, stall_timeout_s: int) -> Iterator[Pod]:
    """A pod that is stopped after the test."""
    made = Pod(tmp_path, stall_timeout_s)
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.communicate()


@pytest.mark.parametrize("stall_timeout_s", [60], ids=["patient"])
def test_pod_broker_is_its_member_and_restarts(pod: Pod) -> None:
    """It has its number, no role, and both addresses, also after a kill; at SIGTERM it stops cleanly."""
    first = pod.wait_for(Phase.SERVING)
    os.kill(first, signal.SIGKILL)
    second = pod.wait_for(Phase.SERVING, other_than=first)

    pod.process.terminate()
    _, output = pod.process.communicate(timeout=180)

    assert pod.process.returncode == 0
    assert "was killed by SIGKILL; restarting immediately" in output
    conf = (pod.folder / "run" / "broker.conf").read_text().splitlines()
    assert {"brokerId=3", "brokerIP1=127.0.0.1", "brokerMasterIP=127.0.0.9", "memoryScope=11-22"} <= set(conf)
    assert pod.wait_for(Phase.STOPPED) == second


@pytest.mark.verify
@pytest.mark.parametrize("stall_timeout_s", [4], ids=["quick"])
def test_stalled_broker_is_killed_and_restarts(pod: Pod) -> None:
    """Its process exists, so nothing else would end it; then a new process serves."""
    first = pod.wait_for(Phase.SERVING)

    os.kill(first, signal.SIGSTOP)
    pod.wait_for(Phase.SERVING, other_than=first)
    pod.process.terminate()
    _, output = pod.process.communicate(timeout=180)

    assert pod.process.returncode == 0
    assert "is stalled; killing it" in output
