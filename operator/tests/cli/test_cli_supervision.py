"""Server processes under supervision: ready lines, deaths, stops, locks and ports, with servers of a few lines."""

import asyncio
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
from gantry_cli.local_stack import StackPlan, broker_conf
from gantry_cli.ports import FAST_PORT_BELOW, REPLICATION_PORT_ABOVE, free_broker_port, require_free
from gantry_cli.processes import send_signal
from gantry_cli.stack import StackDirectory, StackRecord, StackRunning
from gantry_cli.supervisor import RESTARTS_MAX, Server, ServerCommand, ServerFailed
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
FAILS_AFTER_READY = """
print("ready now", flush=True)
raise SystemExit(7)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ServerCommand]:
    """Makes a server of a program's text."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PYTHON_PATH}")

    def make(program: str) -> ServerCommand:
        (tmp_path / "small_server.py").write_text(program)
        return ServerCommand(
            name="server", module="small_server", arguments=(), ready="ready", log=tmp_path / "server.log"
        )

    return make


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until `condition` holds, or fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


async def test_server_is_started_when_it_says_so_and_stopped_politely(command: Callable[[str], ServerCommand]) -> None:
    """start returns after the ready line; stop lets it end by itself; all it said is in its log."""
    server = Server(command(GOOD), lambda _: None)

    await server.start()
    assert await server.stop()

    log = server.command.log.read_text()
    assert "ready now" in log and "clean end" in log
    assert await server.stop()


async def test_server_that_fails_to_start_shows_its_last_words(command: Callable[[str], ServerCommand]) -> None:
    """The reason from its log without the log's prefix, and where the log is."""
    server = Server(command(FAILS), lambda _: None)

    with pytest.raises(ServerFailed, match=r"did not start: the disk is on fire \(see .*server\.log\)"):
        await server.start()


async def test_killed_server_comes_back(command: Callable[[str], ServerCommand]) -> None:
    """kill -9 is reported with its signal, and another process takes over."""
    reports: list[str] = []
    server = Server(command(GOOD), reports.append)
    await server.start()
    keeping = asyncio.create_task(server.keep())
    first = server.pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    await eventually(lambda: len(reports) == 2)

    assert "killed by SIGKILL; restarting at once (restart 1 of 5" in reports[0]
    assert server.pid != first and f"pid {server.pid}" in reports[1] and server.restarts == 1
    await server.stop()
    await asyncio.wait_for(keeping, 60)


async def test_server_that_keeps_dying_is_given_up(
    command: Callable[[str], ServerCommand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last restart the reason comes out instead of an endless loop."""
    waited: list[float] = []

    async def no_sleep(seconds: float) -> None:
        waited.append(seconds)

    server = Server(command(FAILS_AFTER_READY), lambda _: None)
    await server.start()
    monkeypatch.setattr("gantry_cli.supervisor.asyncio.sleep", no_sleep)

    with pytest.raises(ServerFailed, match=rf"ended with code 7 for the {RESTARTS_MAX + 1}th time"):
        await asyncio.wait_for(server.keep(), 180)

    assert waited == [0.0, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.verify
def test_server_does_not_outlive_its_supervisor(tmp_path: Path, command: Callable[[str], ServerCommand]) -> None:
    """kill -9 of whoever started it ends the server, too."""
    command("import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)")
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


def test_directory_is_claimed_once_and_free_after_release(tmp_path: Path) -> None:
    """The second claim learns who has it; after release the record is gone and the next claim works."""
    first, second = StackDirectory(tmp_path), StackDirectory(tmp_path)
    record = StackRecord(pid=1, name_server="a:1", broker="a:2", broker_name="b", started_at_ms=3, is_detached=False)
    assert not first.is_running() and first.running() is None

    first.claim()
    first.write(record)
    with pytest.raises(StackRunning) as refused:
        second.claim()
    assert refused.value.record == record and second.running() == record

    first.release()
    assert not second.is_running() and second.running() is None
    second.claim()
    second.release()


def test_record_of_a_dead_supervisor_is_not_believed(tmp_path: Path) -> None:
    """Without the lock the record proves nothing, and the next claim removes it."""
    directory = StackDirectory(tmp_path)
    directory.record_file.write_text('{"pid":1,"name_server":"a:1","broker":"a:2","broker_name":"b",'
                                     '"started_at_ms":3,"is_detached":true}')  # fmt: skip

    assert directory.running() is None
    directory.claim()
    assert not directory.record_file.exists()
    directory.release()


def test_taken_port_is_named_with_the_option_that_moves_it() -> None:
    """The number, what wanted it, and what to type."""
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()

        with pytest.raises(CliError, match=rf"port {port} \(broker\) is in use .* --broker-port"):
            require_free("127.0.0.1", port, "broker", "--broker-port")

    require_free("127.0.0.1", port, "broker", "--broker-port")


def test_free_broker_port_leaves_room_for_the_ports_beside_it() -> None:
    """All of them can be listened on, and none is one that the kernel gives to a connection meanwhile."""
    port = free_broker_port("127.0.0.1")

    assert port + REPLICATION_PORT_ABOVE < 32_768
    for each in (port, port - FAST_PORT_BELOW, port + REPLICATION_PORT_ABOVE):
        require_free("127.0.0.1", each, "broker", "--broker-port")


def test_unusable_host_is_named() -> None:
    """An address that is not this machine's."""
    with pytest.raises(CliError, match=r"192\.0\.2\.1.*--host"):
        require_free("192.0.2.1", 0, "name server", "--namesrv-port")


def test_given_options_win_in_broker_conf(tmp_path: Path) -> None:
    """Each key once; what was typed replaces the default."""
    plan = StackPlan(
        host="127.0.0.1",
        name_server_port=1,
        broker_port=2,
        broker_options={"brokerName": "mine", "maxMessageSize": "9"},
    )

    lines = broker_conf(StackDirectory(tmp_path), plan).splitlines()

    assert lines[0].startswith("#")
    entries = dict(line.split("=", 1) for line in lines[1:])
    assert len(entries) == len(lines) - 1
    assert entries["brokerName"] == "mine" and entries["maxMessageSize"] == "9"
    assert entries["namesrvAddr"] == "127.0.0.1:1" and entries["listenPort"] == "2"


def wait_until_ended(pid: int) -> None:
    """Return when the process is a zombie: it has ended, and no wait was made for it."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the process does not end"
        time.sleep(0.005)


def test_a_signal_to_a_process_that_has_just_ended_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is a zombie when it is sent a signal; asyncio learns of its end afterwards, with the real code."""
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
    if sys.version_info < (3, 12):  # the twin, where asyncio has the fault
        assert asyncio.run(scenario(asyncio.subprocess.Process.send_signal)) == 255
