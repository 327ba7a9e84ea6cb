"""Supervised server processes: ready lines, crashes, stops, locks and ports, with small test servers."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gantry_cli.errors import CliError
from gantry_cli.local.member import local_restart_policy
from gantry_cli.local.ports import NAME_SERVER, PortPlan, port_probe
from gantry_cli.processes import Phase, ProcessLifecycle, RestartPolicy, ServerProcess, send_signal
from gantry_cli.stack import StackDirectory, StackRecord, StackRunningError
from gantry_testing.ports import free_port
from gantry_testing.tree import PYTHON_PATH

GOOD = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("starting", flush=True)
print("ready now", flush=True)
signal.sigwait({signal.SIGTERM})
print("clean end", file=sys.stderr, flush=True)
"""
FAILS = """
import sys
sys.exit("2025-01-31 12:00:00,000 ERROR some.logger the disk is on fire")
"""


class ServerFolder:
    """The folder of a small test server, with its program and log, and the reports about its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.reports: list[str] = []

    def make(self, program: str) -> ServerProcess:
        (self.folder / "small_server.py").write_text(program)
        return ServerProcess(
            "server", "small_server", lambda: (), self.log, policy=local_restart_policy(), now_ms=lambda: 0,
            report=self.reports.append,
        )  # fmt: skip

    async def ready(self, times: int = 1) -> None:
        """Wait until the server has printed its ready line so often."""
        await eventually(lambda: self.log.exists() and self.log.read_text().count("ready now") >= times)


@pytest.fixture
def server_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFolder:
    """The folder in which a test makes a server from the text of its program."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PYTHON_PATH}")
    return ServerFolder(tmp_path)


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until `condition` holds, or fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def test_server_stops_cleanly_and_restarts(server_folder: ServerFolder) -> None:
    """stop lets it exit by itself, start runs it again, restart does both; its whole output is in its log."""
    server = server_folder.make(GOOD)
    supervision = asyncio.create_task(server.run())
    try:
        server.start()
        await server_folder.ready()
        assert await server.stop()
        await eventually(lambda: not server.is_running)
        assert await server.stop()
        server.start()
        await server_folder.ready(2)
        first = server.boot_id
        await server.restart()
        await server_folder.ready(3)

        assert server.starts == 3 and server.boot_id not in ("", first)
        assert await server.stop()
        assert server_folder.log.read_text().count("clean end") == 3 and server_folder.reports == []
    finally:
        supervision.cancel()
        await asyncio.gather(supervision, return_exceptions=True)


async def test_killed_server_restarts(server_folder: ServerFolder) -> None:
    """kill -9 is reported with its signal, and a new process starts."""
    server = server_folder.make(GOOD)
    server.start()
    supervision = asyncio.create_task(server.run())
    await server_folder.ready()
    first = server.pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    await server_folder.ready(2)

    assert server_folder.reports == ["server was killed by SIGKILL; restarting immediately"]
    assert server.pid != first and server.starts == 2
    await server.stop()
    supervision.cancel()
    await asyncio.gather(supervision, return_exceptions=True)


async def test_crash_is_reported_with_the_last_log_line(server_folder: ServerFolder) -> None:
    """The reason comes from its log without the log's prefix, and is kept as the failure."""
    server = server_folder.make(FAILS)
    server.start()
    supervision = asyncio.create_task(server.run())

    await eventually(lambda: bool(server_folder.reports))

    assert server_folder.reports[0] == "server exited with code 1: the disk is on fire; restarting immediately"
    assert server.failure == "server exited with code 1: the disk is on fire"
    await server.stop()
    supervision.cancel()
    await asyncio.gather(supervision, return_exceptions=True)


def test_restart_delay_grows_until_the_policy_limit() -> None:
    """After the first crash, each delays the next start; after the last permitted one the process is not restarted."""
    life = ProcessLifecycle(RestartPolicy(delay_s_max=8.0, short_runs_max=6))
    life.request_start(10.0)
    delays = []
    while life.phase is Phase.WAITING:
        life.record_start(life.start_at_s)
        delays.append(life.record_exit(7, life.start_at_s))

    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, None] and life.phase is Phase.FAILED


def test_requested_stop_is_not_a_crash() -> None:
    """A stop is requested once; a later request decides about a restart; a pending start is cancelled."""
    life = ProcessLifecycle(RestartPolicy(delay_s_max=1.0, final_codes=frozenset({2})))
    life.request_start(0.0)
    life.record_start(0.0)
    asked = [life.request_restart(), life.request_stop()]
    phases = [life.phase]
    life.request_start(1.0)
    assert life.record_exit(0, 2.0) is None and life.start_at_s == 2.0
    phases.append(life.phase)

    asked.append(life.request_stop())
    phases.append(life.phase)
    life.record_start(3.0)
    phases.append(life.phase)
    assert life.record_exit(0, 4.0) is None
    phases.append(life.phase)

    life.request_start(5.0)
    life.record_start(5.0)
    assert life.record_exit(2, 6.0) is None
    phases.append(life.phase)
    assert asked == [True, False, False]
    assert phases == [Phase.STOPPING, Phase.WAITING, Phase.STOPPED, Phase.STOPPING, Phase.STOPPED, Phase.FAILED]


@pytest.mark.verify
def test_server_does_not_outlive_its_supervisor(server_folder: ServerFolder) -> None:
    """kill -9 of the supervisor ends the server, too."""
    server_folder.make("import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)")
    supervisor = subprocess.Popen(
        [sys.executable, "-c", "import os, subprocess, sys\n"
         "subprocess.run([sys.executable, '-m', 'gantry_cli.child', str(os.getpid()), 'small_server'])"],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert supervisor.stdout is not None
    pid = int(supervisor.stdout.readline().split()[1])

    supervisor.kill()
    supervisor.wait(60)

    assert supervisor.stdout.read() == ""  # the end of the pipe comes when its last writer, the server, is gone
    supervisor.stdout.close()
    with pytest.raises(ProcessLookupError):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.01)


def test_directory_lock_is_exclusive_until_release(tmp_path: Path) -> None:
    """A second process learns which one has it; after release the record is gone and the lock is free."""
    first, second = StackDirectory(tmp_path), StackDirectory(tmp_path)
    record = StackRecord(pid=1, name_server="a:1", broker="a:2", broker_name="b", started_at_ms=3, is_detached=False)
    assert not first.is_running() and first.running() is None

    first.claim()
    first.write(record)
    with pytest.raises(StackRunningError) as refused:
        second.claim()
    assert refused.value.record == record and second.running() == record

    first.release()
    assert not second.is_running() and second.running() is None
    second.claim()
    second.release()


def test_check_of_another_command_does_not_refuse_a_start(tmp_path: Path) -> None:
    """`gantry status` holds a shared lock while it checks whether a stack runs; a start waits for the end of that."""
    file = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(file, fcntl.LOCK_SH)
    pauses: list[float] = []

    def end_check(pause_s: float) -> None:
        pauses.append(pause_s)
        fcntl.flock(file, fcntl.LOCK_UN)

    directory = StackDirectory(tmp_path, end_check)
    try:
        directory.claim()
        assert StackDirectory(tmp_path).is_running() and len(pauses) == 1
    finally:
        directory.release()
        os.close(file)


def test_record_of_a_dead_supervisor_is_ignored(tmp_path: Path) -> None:
    """Without the lock the record is invalid, and the next process that takes the lock removes it."""
    directory = StackDirectory(tmp_path)
    directory.record_file.write_text('{"pid":1,"name_server":"a:1","broker":"a:2","broker_name":"b",'
                                     '"started_at_ms":3,"is_detached":true}')  # fmt: skip

    assert directory.running() is None
    directory.claim()
    assert not directory.record_file.exists()
    directory.release()


def test_port_is_free_while_no_process_listens_on_it() -> None:
    """A busy port is not an exception: the planner reports it with its use."""
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not port_probe("127.0.0.1")(port)

    assert port_probe("127.0.0.1")(port)


def test_unusable_host_is_an_error_with_its_use() -> None:
    """The error names an address of another machine, and the process that needs it."""
    plan = PortPlan(is_free=port_probe("192.0.2.1"))
    with pytest.raises(CliError, match=r"cannot listen on 192\.0\.2\.1:9876 \(name server of ns\).*--host"):
        plan.allocate_first(NAME_SERVER, 9876, "ns")


def wait_until_ended(pid: int) -> None:
    """Return when the process is a zombie: it has ended, and no wait was made for it."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the process does not end"
        time.sleep(0.005)


def test_signal_to_an_ended_process_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is a zombie when it gets a signal; asyncio then still reports the real exit code."""
    is_signalled = threading.Event()
    wait = asyncio.ThreadedChildWatcher._do_waitpid  # type: ignore[attr-defined]

    def wait_later(*arguments: object) -> None:
        is_signalled.wait()
        wait(*arguments)

    monkeypatch.setattr(asyncio.ThreadedChildWatcher, "_do_waitpid", wait_later)

    async def scenario(send: Callable[[asyncio.subprocess.Process, signal.Signals], None]) -> int:
        is_signalled.clear()
        asyncio.get_event_loop_policy().set_child_watcher(asyncio.ThreadedChildWatcher())
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
        wait_until_ended(process.pid)
        send(process, signal.SIGTERM)
        is_signalled.set()
        return await process.wait()

    assert asyncio.run(scenario(send_signal)) == 3
    if sys.version_info < (3, 12):  # there asyncio has the fault itself
        assert asyncio.run(scenario(asyncio.subprocess.Process.send_signal)) == 255
