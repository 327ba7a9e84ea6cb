"""The command line with real servers: `up` and `down`, and commands for messages, topics and status of one stack."""

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gantry_cli.stack import StackDirectory
from gantry_testing.accounts import ADMIN, write_accounts
from gantry_testing.local import PATIENT, ROOMY
from gantry_testing.tree import PYTHON_PATH

SMALL_STORE = tuple(
    part
    for key, value in {
        "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
        "messageIndexEnable": "false",
        **PATIENT,
        **ROOMY,
    }.items()
    for part in ("-o", f"{key}={value}")
)
TIMEOUT_S = 240
"""The limit for one command; a busy machine starts four processes slowly."""


def gantry(
    *arguments: str, namesrv: str | None = None, given: str | bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", "gantry_cli", *arguments],
        input=given.decode() if isinstance(given, bytes) else given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment(namesrv),
    )


def environment(namesrv: str | None = None) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key != "GANTRY_NAMESRV"}
    return variables | {"PYTHONPATH": PYTHON_PATH} | ({"GANTRY_NAMESRV": namesrv} if namesrv else {})


def wait_until(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    """Wait until `condition` holds, or fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


@dataclass
class Stack:
    """A running stack, with methods to run commands."""

    directory: Path
    name_server: str

    def gantry(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        return gantry(*arguments, namesrv=self.name_server, given=given)

    def run(self, *arguments: str, given: str | None = None) -> str:
        """Return the output of a command that must succeed."""
        result = self.gantry(*arguments, given=given)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def create_topic(self, name: str, queues: int = 2) -> str:
        self.run("topic", "create", name, "--queues", str(queues))
        return name


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    up = gantry(
        "up",
        "--single",
        "--data",
        str(directory),
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
        "--detach",
        *("-o", "enablePropertyFilter=true"),
        *SMALL_STORE,
    )
    assert up.returncode == 0, up.stderr
    record = StackDirectory(directory).running()
    assert record is not None
    yield Stack(directory, record.name_server)
    down = gantry("down", "--data", str(directory))
    assert down.returncode == 0, down.stderr


@pytest.mark.verify
def test_detached_stack_prints_addresses_and_next_steps(tmp_path: Path) -> None:
    """`up` prints addresses and a self-check; a second `up` names the first; a second `down` is not an error."""
    ports = ("--namesrv-port", "0", "--broker-port", "0", *SMALL_STORE)
    up = gantry("up", "--single", "--data", str(tmp_path), "--detach", *ports)
    record = StackDirectory(tmp_path).running()
    again = gantry("up", "--single", "--data", str(tmp_path), *ports)
    again_detached = gantry("up", "--single", "--data", str(tmp_path), "--detach", *ports)
    down = gantry("down", "--data", str(tmp_path))
    nothing = gantry("down", "--data", str(tmp_path))

    assert up.returncode == 0 and record is not None
    assert "1 message sent and read back" in up.stdout
    assert f'setNamesrvAddr("{record.name_server}")' in up.stdout and record.broker in up.stdout
    assert f"{sys.executable} -m gantry_cli down --data {tmp_path}" in up.stdout, (
        "expected a hint that names the command as the tests run it"
    )
    for refused in (again, again_detached):
        assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1
        assert f"name server {record.name_server}, pid {record.pid}" in refused.stderr
    assert down.returncode == 0 and record.broker in down.stdout
    assert nothing.returncode == 0 and "Nothing is running" in nothing.stdout
    with pytest.raises(ConnectionRefusedError):
        host, _, port = record.name_server.rpartition(":")
        socket.create_connection((host, int(port)), timeout=60)


@pytest.mark.verify
def test_detached_stack_uses_the_account_of_its_command(tmp_path: Path) -> None:
    """Its check sends a message through a broker with access control; without the account, that is refused."""
    credentials = tmp_path / "credentials.yml"
    credentials.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    guarded = (
        "-o",
        "aclEnable=true",
        "-o",
        "haListenPort=-1",
        "-o",
        f"aclFile={write_accounts(tmp_path / 'accounts.yml')}",
    )
    ports = ("--namesrv-port", "0", "--broker-port", "0", *guarded, *SMALL_STORE)
    up = ("up", "--single", "--data", str(tmp_path / "stack"), "--detach", *ports)

    refused = gantry(*up)
    try:
        accepted = gantry("--log-level", "debug", "--credentials", str(credentials), *up)
    finally:
        gantry("down", "--data", str(tmp_path / "stack"))

    assert refused.returncode == 1 and "No accessKey is configured" in refused.stderr
    assert accepted.returncode == 0 and "1 message sent and read back" in accepted.stdout
    assert " DEBUG " in (tmp_path / "stack" / "up.log").read_text()


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_foreground_stack_prints_state_and_stops_on_signal(tmp_path: Path, number: signal.Signals) -> None:
    """The stack prints a summary and its state, and stops cleanly with exit code 0."""
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "gantry_cli", "up", "--single", "--data", str(tmp_path), *ports, *SMALL_STORE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("up "):
                break
        process.send_signal(number)
        rest, errors = process.communicate()
    finally:
        watchdog.cancel()

    assert lines[0] == "Gantry is up.\n" and "stored" in lines[-1]
    assert process.returncode == 0 and errors == "" and rest.endswith("stopping\nstopped\n")
    assert not (tmp_path / "broker" / "abort").exists()
    assert not StackDirectory(tmp_path).is_running()


@pytest.mark.verify
def test_invalid_setting_stops_up_with_error_of_broker(tmp_path: Path) -> None:
    """An invalid setting is reported in one line, also with --detach, and no process is left."""
    for detach in ((), ("--detach",)):
        ports = ("--namesrv-port", "0", "--broker-port", "0")
        result = gantry("up", "--single", "--data", str(tmp_path), *ports, "-o", "no.such=1", *detach)

        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1 and "no.such is not a setting" in result.stderr
        assert not StackDirectory(tmp_path).is_running()


def test_port_in_use_is_reported_before_start(tmp_path: Path) -> None:
    """The error names the port and its option, and no server is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = gantry("up", "--single", "--data", str(tmp_path), "--namesrv-port", str(port))

    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert f"port {port} (name server of nameserver-0) is in use" in result.stderr and "--namesrv-port" in result.stderr
    assert not (tmp_path / "nameserver").exists()


def test_killed_broker_is_restarted_with_its_messages(tmp_path: Path) -> None:
    """After SIGKILL the broker is restarted on its port, and acknowledged messages are kept."""
    up = gantry(
        "up", "--single", "--data", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0", "--detach", *SMALL_STORE
    )
    assert up.returncode == 0, up.stderr
    record = StackDirectory(tmp_path).running()
    assert record is not None
    try:
        sent = gantry("produce", "survivors", "one", "two", namesrv=record.name_server)
        assert sent.returncode == 0, sent.stderr

        os.kill(child_of(record.pid, "gantry_broker"), signal.SIGKILL)
        log = StackDirectory(tmp_path).log

        def read() -> list[str]:
            return sorted(gantry("consume", "survivors", namesrv=record.name_server).stdout.split())

        wait_until(lambda: read() == ["one", "two"])
        assert "killed by SIGKILL; restarting immediately" in log.read_text()
    finally:
        assert gantry("down", "--data", str(tmp_path)).returncode == 0


def child_of(parent: int, module: str) -> int:
    """Return the pid of the child of `parent` that runs `python -m module`."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in map(int, children):
        if module in Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0"):
            return child
    raise AssertionError(f"{parent} runs no {module}")


# ------- messages


def test_messages_are_read_in_the_order_of_sends(stack: Stack) -> None:
    """Each argument is a message with a receipt; reading without a group changes nothing."""
    topic = stack.create_topic("order")
    receipts = stack.run("produce", topic, "one", "two", "three", "four").splitlines()

    first, second = stack.run("consume", topic), stack.run("consume", topic)

    assert len(receipts) == 4 and all(line.startswith("SEND_OK  ") for line in receipts)
    assert first == second == "one\ntwo\nthree\nfour\n"


@pytest.mark.verify
def test_lines_of_standard_input_are_messages(stack: Stack) -> None:
    """Each line is a message, in any language; many messages are summarized."""
    topic = stack.create_topic("lines", queues=1)

    stack.run("produce", topic, given="erste\nzweite, mit Umläuten: äöü\n")
    many = stack.run("produce", topic, given="".join(f"{n}\n" for n in range(500)))

    read = stack.run("consume", topic).splitlines()
    assert read[:2] == ["erste", "zweite, mit Umläuten: äöü"]
    assert read[2:] == [str(n) for n in range(500)]
    assert "500 messages acknowledged" in many


def test_line_that_is_too_long_stops_after_the_lines_before_it(stack: Stack) -> None:
    """One line says how many messages are acknowledged, and why it stopped."""
    topic = stack.create_topic("long-lines", queues=1)

    stopped = stack.gantry("produce", topic, given="before\n" + "x" * (16 * 1024 * 1024 + 1))

    text = "after 1 acknowledged messages: a line of standard input is longer than 16777216 bytes"
    assert (stopped.returncode, stopped.stderr) == (1, f"gantry: {text}\n")
    assert stack.run("consume", topic).splitlines() == ["before"]


@pytest.mark.verify
def test_message_properties_are_read_back(stack: Stack) -> None:
    """--json and --verbose show tag, keys and properties; --tag filters; --count repeats."""
    topic = stack.create_topic("marks", queues=1)
    stack.run("produce", topic, "paid", "--tag", "a", "--key", "k1", "--key", "k2", "--property", "x=y")
    produced = [
        json.loads(line)
        for line in stack.run("produce", topic, "b", "--tag", "b", "--count", "3", "--json").splitlines()
    ]

    (paid,) = [json.loads(line) for line in stack.run("consume", topic, "--tag", "a", "--json").splitlines()]
    verbose = stack.run("consume", topic, "--count", "1", "-v")

    assert (paid["body"], paid["tags"], paid["keys"], paid["queue_offset"]) == ("paid", "a", ["k1", "k2"], 0)
    assert paid["properties"]["x"] == "y"
    assert [r["queue_offset"] for r in produced] == [1, 2, 3] and {r["status"] for r in produced} == {"SEND_OK"}
    assert f"{topic}/broker-a/0@0  tag=a  keys=k1,k2  paid" in verbose
    assert stack.run("consume", topic, "--tag", "a || b").split() == ["paid", "b", "b", "b"]


@pytest.mark.verify
def test_sql_filters_by_properties(stack: Stack) -> None:
    """--sql filters by properties and by the tag, with and without a group."""
    topic = stack.create_topic("priced", queues=1)
    for price in ("5", "50", "x"):
        stack.run("produce", topic, f"at {price}", "--property", f"price={price}", "--tag", "new")

    assert stack.run("consume", topic, "--sql", "price > 10").splitlines() == ["at 50"]
    assert stack.run("consume", topic, "--sql", "price > 1 AND TAGS = 'new'", "--group", "buyers").splitlines() == [
        "at 5",
        "at 50",
    ]


@pytest.mark.verify
def test_group_consumes_each_message_once(stack: Stack) -> None:
    """--count commits exactly the printed messages; the next call continues with the rest."""
    topic = stack.create_topic("shared")
    stack.run("produce", topic, given="".join(f"{n}\n" for n in range(30)))

    first = stack.run("consume", topic, "--group", "readers", "--count", "10").split()
    second = stack.run("consume", topic, "--group", "readers").split()
    third = stack.run("consume", topic, "--group", "readers").split()

    assert len(first) == 10 and sorted(first + second, key=int) == [str(n) for n in range(30)]
    assert third == []
    described = json.loads(stack.run("topic", "describe", topic, "--json"))
    assert [(g["name"], g["lag"]) for g in described["groups"]] == [("readers", 0)]


@pytest.mark.verify
def test_consume_starts_at_requested_position(stack: Stack) -> None:
    """`latest` skips existing messages; an age selects newer ones."""
    topic = stack.create_topic("begin", queues=1)
    stack.run("produce", topic, "old")

    assert stack.run("consume", topic, "--from", "latest") == ""
    assert stack.run("consume", topic, "--from", "1h") == "old\n"
    assert stack.run("consume", topic, "--from", "2099-01-01T00:00") == ""


@pytest.mark.verify
@pytest.mark.parametrize("group", [(), ("--group", "followers")], ids=["no group", "group"])
def test_follow_prints_new_messages_until_interrupted(stack: Stack, group: tuple[str, ...]) -> None:
    """A new message is printed immediately; Ctrl-C ends the command with exit code 0."""
    topic = stack.create_topic(f"follow{len(group)}", queues=1)
    stack.run("produce", topic, "before")
    process = subprocess.Popen(
        [sys.executable, "-m", "gantry_cli", "consume", topic, "--follow", *group],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(stack.name_server),
    )  # fmt: skip
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
        stack.run("produce", topic, "after")
        assert process.stdout.readline() == "after\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    finally:
        watchdog.cancel()

    assert (process.returncode, rest, errors) == (0, "", "")


@pytest.mark.verify
def test_delayed_message_is_delivered_after_its_delay(stack: Stack) -> None:
    """A message with delay level 1 is delivered after one second."""
    topic = stack.create_topic("later", queues=1)
    sent = time.monotonic()
    stack.run("produce", topic, "hello", "--delay-level", "1")

    wait_until(lambda: stack.run("consume", topic) == "hello\n")

    assert time.monotonic() - sent >= 0.9


# ------- topics and status


@pytest.mark.verify
def test_topic_is_created_changed_described_and_deleted(stack: Stack) -> None:
    """A topic can be created, changed, described and deleted; deletion asks for confirmation."""
    stack.run("topic", "create", "cycle", "--queues", "2")
    assert "cycle" in stack.run("topic", "list").split()
    stack.run("topic", "create", "cycle", "--queues", "3")
    stack.run("produce", "cycle", "x")

    described = json.loads(stack.run("topic", "stats", "cycle", "--json"))
    assert len(described["queues"]) == 3 and described["topic"]["messages"] == 1
    assert "1 message in 3 queues on broker-a" in stack.run("topic", "describe", "cycle")

    refused = stack.gantry("topic", "delete", "cycle", given="n\n")
    assert refused.returncode == 1 and "with 1 message?" in refused.stdout
    stack.run("topic", "delete", "cycle", "--yes")
    assert "cycle" not in json.loads(stack.run("topic", "list", "--json"))
    assert stack.gantry("topic", "describe", "cycle").returncode == 3


@pytest.mark.verify
def test_read_only_topic_refuses_messages(stack: Stack) -> None:
    """--permission r refuses sends and permits reads."""
    topic = stack.create_topic("frozen")
    stack.run("produce", topic, "kept")

    stack.run("topic", "create", topic, "--queues", "2", "--permission", "r")

    refused = stack.gantry("produce", topic, "lost")
    assert refused.returncode != 0 and len(refused.stderr.splitlines()) == 1
    assert stack.run("consume", topic) == "kept\n"


@pytest.mark.verify
def test_topic_settings_are_shown(stack: Stack) -> None:
    """Options omitted in an update return to their defaults; attributes are changed one by one."""

    def settings() -> dict[str, object]:
        (one,) = json.loads(stack.run("topic", "describe", "careful", "--json"))["settings"]
        return dict(one)

    stack.run(
        *("topic", "create", "careful", "--queues", "2", "--read-queues", "5", "--permission", "none", "--ordered"),
        *("--attribute", "message.type=FIFO", "--attribute", "reserve.time=7"),
    )
    assert settings() == {
        "broker": "broker-a", "write_queues": 2, "read_queues": 5, "permission": "none", "is_ordered": True,
        "attributes": {"message.type": "FIFO", "reserve.time": "7"},
    }  # fmt: skip
    assert "message.type=FIFO, reserve.time=7" in stack.run("topic", "describe", "careful")

    stack.run("topic", "create", "careful", "--queues", "2", "--no-attribute", "reserve.time")
    assert settings() == {
        "broker": "broker-a", "write_queues": 2, "read_queues": 2, "permission": "rw", "is_ordered": False,
        "attributes": {"message.type": "FIFO"},
    }  # fmt: skip
    refused = stack.gantry("topic", "create", "careful", "--attribute", "queue.type=SimpleCQ")
    assert refused.returncode != 0 and "unchangeable" in refused.stderr


@pytest.mark.verify
def test_order_configuration_is_stored_on_name_servers(stack: Stack) -> None:
    """An order configuration can be set, shown and removed; its default is all write queues."""
    topic = stack.create_topic("ledger", queues=3)
    assert stack.run("topic", "order", topic) == 'Topic "ledger": no order configuration\n'
    assert stack.run("topic", "order", topic, "--set") == 'Topic "ledger": order broker-a:3\n'
    shown = json.loads(stack.run("topic", "order", topic, "--set", "--value", "broker-a:1;broker-b:2", "--json"))
    assert shown == {"topic": topic, "order": "broker-a:1;broker-b:2", "queues": {"broker-a": 1, "broker-b": 2}}
    assert json.loads(stack.run("topic", "order", topic, "--remove", "--json"))["order"] is None
    assert stack.gantry("topic", "order", topic, "--set", "--value", "broker-a").returncode == 2


@pytest.mark.verify
def test_status_shows_brokers_topics_and_groups(stack: Stack) -> None:
    """Tables and JSON show the same data."""
    topic = stack.create_topic("visible", queues=1)
    stack.run("produce", topic, "a", "b", "c")
    stack.run("consume", topic, "--group", "viewers", "--count", "1")

    tables = stack.run("status", "--data", str(stack.directory))
    document = json.loads(stack.run("status", "--json", "--data", str(stack.directory)))

    assert "broker-a" in tables and "visible" in tables and "viewers" in tables
    assert "started by `gantry up` in the background" in tables
    (broker,) = document["brokers"]
    assert broker["address"]["name"] == "broker-a" and broker["facts"]["puts"] >= 3 and broker["failure"] is None
    (shown,) = [t for t in document["topics"] if t["name"] == topic]
    assert (shown["messages"], shown["queues"]) == (3, 1)
    (group,) = [g for g in document["groups"] if (g["name"], g["topic"]) == ("viewers", topic)]
    assert (group["consumed_offset_total"], group["lag"]) == (1, 2)
    assert document["local_stack"]["name_server"] == stack.name_server


# ------- failures


@pytest.mark.verify(quick=3)
@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("consume", "nowhere"), 3, "gantry topic create nowhere"),
        (("topic", "describe", "nowhere"), 3, "gantry topic create nowhere"),
        (("topic", "delete", "nowhere", "--yes"), 3, "nowhere"),
        (("topic", "create", "../x"), 2, "may hold only"),
        (("produce", "../x", "y"), 2, "may hold only"),
        (("consume", "x", "--from", "yesterday"), 2, "earliest, latest"),
        (("produce", "x", "y", "--property", "nonsense"), 2, "NAME=VALUE"),
        (("consume", "x", "--sql", "a >"), 2, "unexpected end"),
        (("consume", "x", "--sql", "a > 5 b"), 2, "would be ignored"),
        (("consume", "x", "--sql", "a > 5", "--tag", "b"), 2, "mutually exclusive"),
        (("status", "-n", "nonsense"), 2, "host:port"),
        (("frobnicate",), 2, "No such command"),
        (("up", "-o", "nonsense"), 2, "KEY=VALUE"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_failures_are_short_with_correct_exit_codes(
    stack: Stack, arguments: tuple[str, ...], exit_code: int, words: str
) -> None:
    """Errors have no traceback; exit code 2 is invalid usage, 3 is not found."""
    result = stack.gantry(*arguments)

    assert result.returncode == exit_code, result.stderr
    assert words in result.stderr and "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith(("gantry:", "Error:"))]) == 1


@pytest.mark.parametrize(
    "arguments", [("status",), ("topic", "list"), ("produce", "x", "y"), ("consume", "x")], ids="-".join
)
def test_unreachable_name_server_is_reported_with_remedy(arguments: tuple[str, ...]) -> None:
    """The error names the address and the command that starts a name server."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = gantry(*arguments, namesrv=address)

    assert result.returncode == 1
    remedy = "start one with `gantry up`, or set another address with -n HOST:PORT"
    assert result.stderr == f"gantry: no name server answers at {address} -- {remedy}\n"


@pytest.mark.parametrize("server", ["nameserver", "broker"])
def test_help_of_server_is_passed_through(server: str) -> None:
    """`gantry SERVER --help` shows the help of the server with examples."""
    result = gantry(server, "--help")

    assert result.returncode == 0
    assert f"gantry {server} " in result.stdout and "xample" in result.stdout


def test_server_command_handles_sigterm_itself(tmp_path: Path) -> None:
    """`gantry nameserver` becomes the server process: SIGTERM ends it with exit code 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gantry_cli", "nameserver", "--listen", "127.0.0.1:0", "--data", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("name server listening on 127.0.0.1:")
        process.terminate()
        process.communicate()
    finally:
        watchdog.cancel()

    assert process.returncode == 0


@pytest.mark.verify
def test_state_line_is_updated_in_place_on_terminal(tmp_path: Path) -> None:
    """On a terminal the state line is updated in place, and Ctrl-C stops the stack."""
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gantry_cli", "up", "--single", "--data", str(tmp_path), *ports, *SMALL_STORE],
        stdin=terminal, stdout=terminal, stderr=terminal, env=environment(), start_new_session=True,
    )  # fmt: skip
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    seen = b""
    try:
        os.close(terminal)
        while seen.count(b"\r\x1b[2Kup ") < 2:
            seen += os.read(controller, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # reading a terminal without writers is an error
            while chunk := os.read(controller, 4096):
                seen += chunk
    finally:
        process.wait()
        watchdog.cancel()
        os.close(controller)

    assert process.returncode == 0
    assert seen.decode().replace("\r", "").endswith("\nstopping\nstopped\n")
