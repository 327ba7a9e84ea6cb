"""The command line without servers: times, numbers, rates, restarts, errors, help, lines of standard input."""

import asyncio
import os
import re
import shlex
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gantry_cli.errors import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, CliError, error_for_client
from gantry_cli.examples import examples
from gantry_cli.main import COMMAND_SECTIONS, cli, version_text
from gantry_cli.messages.produce import CHUNK_BYTES, standard_input_lines
from gantry_cli.processes import DEATH_WINDOW_S, RestartPolicy
from gantry_cli.rates import message_rates, parse_runtime_info
from gantry_cli.text import StartPosition, duration_text, parse_start_position, rate_text
from gantry_client import (
    Attempt,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    NoMaster,
    NoRoute,
    RequestTimeout,
    RouteProblem,
    SendFailed,
    Unavailable,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", StartPosition()),
        (" Latest ", StartPosition(is_latest=True)),
        ("90s", StartPosition(timestamp_ms=NOW_MS - 90_000)),
        ("10m", StartPosition(timestamp_ms=NOW_MS - 600_000)),
        ("2h", StartPosition(timestamp_ms=NOW_MS - 7_200_000)),
        ("1d", StartPosition(timestamp_ms=NOW_MS - 86_400_000)),
        ("99999d", StartPosition(timestamp_ms=0)),
        ("1970-01-02T00:00:00+00:00", StartPosition(timestamp_ms=86_400_000)),
    ],
)
def test_start_positions_are_parsed(text: str, start: StartPosition) -> None:
    """Start positions are the earliest or latest offset, an age, or a time."""
    assert parse_start_position(text, NOW_MS) == start


def test_time_without_zone_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without a zone is in the local time zone."""
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        assert parse_start_position("1970-01-01T05:00", NOW_MS) == StartPosition(timestamp_ms=2 * 3_600_000)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "10", "m10", "-5m", "5 weeks"])
def test_invalid_start_position_names_valid_forms(text: str) -> None:
    """The error names the invalid text and the valid forms."""
    with pytest.raises(ValueError, match="earliest, latest"):
        parse_start_position(text, NOW_MS)


def test_rates_and_durations_are_formatted() -> None:
    """Values are written with few digits and a unit at the end."""
    assert [rate_text(r) for r in (0.0, 0.25, 9.96, 12345.6)] == ["0.0", "0.2", "10.0", "12,346"]
    assert [duration_text(s) for s in (0, 59.9, 61, 3725, 90_061)] == ["0s", "59s", "1m 1s", "1h 2m", "1d 1h"]


def test_rates_are_zero_after_restart() -> None:
    """A rate needs two samples of one run; after a restart it is zero, never negative."""
    table = {"msgPutTotalTodayNow": "100", "msgGetTotalTodayNow": "50", "bootTimestamp": "1"}
    earlier = parse_runtime_info(table, 10.0)
    later = parse_runtime_info(table | {"msgPutTotalTodayNow": "300", "msgGetTotalTodayNow": "60"}, 12.0)
    restarted = parse_runtime_info({"msgPutTotalTodayNow": "5", "bootTimestamp": "2"}, 14.0)

    assert (message_rates(earlier, later).puts_per_s, message_rates(earlier, later).gets_per_s) == (100.0, 5.0)
    assert message_rates(later, restarted).puts_per_s == 0.0
    assert message_rates(later, later).puts_per_s == 0.0


def test_runtime_info_of_java_broker_and_partial_tables_is_parsed() -> None:
    """Missing and unreadable values are zero, or None where zero would be wrong."""
    java = parse_runtime_info(
        {
            "putTps": "12.5 3.2 1.0",
            "getTransferedTps": "7.5 0 0",
            "commitLogMinOffset": "100",
            "commitLogMaxOffset": "1100",
            "commitLogDiskRatio": "0.25",
            "brokerVersionDesc": "V5_3_3",
        },
        0.0,
    )
    empty = parse_runtime_info({"commitLogDiskRatio": "-1.0", "putTps": "", "msgPutTotalTodayNow": "x"}, 0.0)

    assert (java.puts_per_s, java.gets_per_s, java.stored_bytes, java.disk_used_ratio) == (12.5, 7.5, 1000, 0.25)
    assert (empty.puts, empty.puts_per_s, empty.disk_used_ratio, empty.connections) == (0, 0.0, None, None)


def test_restart_policy_backs_off_and_gives_up() -> None:
    """Restarts are immediate, then after 1, 2, 4 and 8 s, then stop; old deaths do not count."""
    policy = RestartPolicy(delay_s_max=8.0, short_runs_max=6)

    assert [policy.delay_after_death(float(n), float(n)) for n in range(6)] == [0.0, 1.0, 2.0, 4.0, 8.0, None]
    assert policy.delay_after_death(DEATH_WINDOW_S, DEATH_WINDOW_S * 3) == 0.0


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (NoRoute("orders", "unknown"), EXIT_NOT_FOUND, "gantry topic create orders"),
        (NoMaster("orders", ("shard-0",)), EXIT_FAILED, "no master is registered for 'shard-0' -- a failover may be"),
        (NoMaster("orders", ()), EXIT_FAILED, "no broker is registered -- start one"),
        (NoRoute("t", "x", RouteProblem.NO_PERMISSION), EXIT_FAILED, "gantry topic describe t"),
        (NoRoute("t", "x", RouteProblem.NOT_REGISTERED), EXIT_FAILED, "a failover may be in progress"),
        (NoRoute("t", "x", RouteProblem.UNDECIDED), EXIT_NOT_FOUND, "may have no master now: try again; else create"),
        (Unavailable("no name server answers: x"), EXIT_FAILED, "ns:1 -- start one with `gantry up`"),
        (
            Unavailable("no master of any cluster is registered with the name servers"),
            EXIT_FAILED,
            "a failover may be in progress",
        ),
        (
            Unavailable("no broker is registered with the name servers"),
            EXIT_FAILED,
            "no broker is registered at ns:1 -- start one",
        ),
        (
            Unavailable("no master of cluster 'west' is registered with the name servers"),
            EXIT_FAILED,
            "check the name of the cluster",
        ),
        (
            Unavailable("no name server answers: the connection to ns:1 was closed"),
            EXIT_FAILED,
            "the server at ns:1 closed the connection -- it may require TLS",
        ),
        (BrokerRefused(3, "not supported", "ns:1"), EXIT_FAILED, "is no name server"),
        (BrokerRefused(3, "not supported", "b:1"), EXIT_FAILED, "this version of the broker"),
        (BrokerRefused(16, "No accessKey is configured", "b:1"), EXIT_FAILED, "use an account with this permission"),
        (BrokerRefused(16, "Check signature failed", "b:1"), EXIT_FAILED, "check accessKey and secretKey"),
        (Unavailable("broker x"), EXIT_FAILED, "gantry status"),
        (BrokerRefused(17, "no topic", "b:1"), EXIT_NOT_FOUND, "17 TOPIC_NOT_EXIST"),
        (BrokerRefused(26, None, "b:1"), EXIT_NOT_FOUND, "group does not exist"),
        (BrokerRefused(1, "boom", "b:1"), EXIT_FAILED, "boom"),
        (RequestTimeout("slow"), EXIT_FAILED, "busy or stopped"),
        (InvalidMessage("bad name"), EXIT_USAGE, "bad name"),
        (
            SendFailed("t", (Attempt("b", RequestTimeout("slow")),), "gave up"),
            EXIT_FAILED,
            "may have stored the message",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ClientError) else None,
)
def test_every_client_error_has_one_line_and_exit_code(error: ClientError, exit_code: int, words: str) -> None:
    """The line has the problem and the remedy; not found is 3, invalid input 2, everything else 1."""
    shown = error_for_client(error, "ns:1")

    assert shown.exit_code == exit_code
    assert words in shown.message and "\n" not in shown.message


def test_error_text_is_joined_to_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Line breaks in a remark of a broker are replaced by spaces."""
    CliError("first\nsecond", "do\tthis").show()

    assert capsys.readouterr().err == "gantry: first second -- do this\n"


def root_context() -> click.Context:
    """Return the context of the root command. A command keeps the help option of its first context."""
    return click.Context(cli, info_name="gantry", **cli.context_settings)


def commands() -> list[tuple[str, click.Command]]:
    """Return every command and subcommand with its name."""
    found: list[tuple[str, click.Command]] = []
    context = root_context()
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {inner}", command.commands[inner]) for inner in sorted(command.commands)]
    return found


@pytest.mark.parametrize(("words", "command"), commands(), ids=[words for words, _ in commands()])
def test_help_has_examples(words: str, command: click.Command) -> None:
    """The help of each command has a description and examples."""
    text = command.get_help(click.Context(command, parent=root_context(), info_name=words))

    assert command.help is not None and len(command.help) > 20
    assert "Examples:" in text
    assert re.search(rf"^\s+(.*\| )?gantry {words.split()[0]}", text, re.MULTILINE)


SHELL_OPERATORS = re.compile(r"\s(?:\||>(?! \d)|&&)\s|\$\(")


def typed_examples(command: click.Command) -> list[list[str]]:
    """Return the arguments of `gantry` in each example, without pipes, redirections and explanations."""
    lines = [line for line in (command.epilog or "").splitlines() if line.startswith("  ") and "gantry" in line]
    found = []
    for line in lines:
        line_without_meaning = re.split(r"(?<=\S) {3,}", line.strip())[0]
        [part] = [
            part for part in SHELL_OPERATORS.split(line_without_meaning) if re.match(r'"?gantry ', part.strip())
        ] or [None]
        if part is not None:
            found.append(shlex.split(part.strip().rstrip('")') if "$(" in line_without_meaning else part)[1:])
    return found


def parse(words: list[str]) -> click.Context:
    """Parse a command line without running the command. Raises UsageError."""
    context = cli.make_context("gantry", list(words))
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, inner, rest = command.resolve_command(context, [*getattr(context, "_protected_args", ()), *context.args])
        assert inner is not None and name is not None
        command, context = inner, inner.make_context(name, rest, parent=context)
    return context


EXAMPLES = [(words, typed) for words, command in commands() for typed in typed_examples(command)]


@pytest.mark.parametrize(("words", "typed"), EXAMPLES, ids=[" ".join(typed) for _, typed in EXAMPLES])
def test_every_example_can_be_parsed(
    words: str, typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example has valid options and arguments, and is an example of its own command."""
    (tmp_path / "group.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GANTRY_NAMESRV", "127.0.0.1:9876")
    monkeypatch.setattr("gantry_cli.ha.commands.default_sockets", lambda: (tmp_path / "control.sock",))

    context = parse(typed)

    assert context.command_path.split()[1] == words.split()[0]


def test_every_command_has_a_parsed_example() -> None:
    """The help of each command has at least one example that is parsed."""
    assert {words for words, _ in commands()} - {words for words, _ in EXAMPLES} == set()


@pytest.mark.parametrize("typed", [["status", "--no-such-option"], ["topic", "list", "-n", "nonsense"], ["frobnicate"]])
def test_invalid_example_is_detected(typed: list[str]) -> None:
    """The check above detects an invalid example."""
    with pytest.raises(click.UsageError):
        parse(typed)


def test_overview_has_the_summaries_of_commands() -> None:
    """A summary in the overview is the first line of the help of its command; each command is listed once."""
    context = root_context()
    listed = [(name, entry.summary) for entries in COMMAND_SECTIONS.values() for name, entry in entries.items()]
    overview = CliRunner().invoke(cli, ["--help"]).stdout

    assert len({name for name, _ in listed}) == len(listed)
    for name, summary in listed:
        command = cli.get_command(context, name)
        assert command is not None and command.help is not None
        assert command.help.splitlines()[0] == summary
        assert summary in overview
    assert cli.get_command(context, "frobnicate") is None


def test_version_shows_gantry_and_python() -> None:
    """--version prints one line with the versions of Gantry and Python, and which hot path runs."""
    result = CliRunner().invoke(cli, ["--version"])

    assert result.exit_code == 0 and result.stdout == version_text() + "\n"
    assert re.fullmatch(
        r"gantry \d+\.\d+\.\d+\S* \(Python 3\.\d+\.\d+\S*, (compiled hot path|Python hot path: .+)\)", version_text()
    )


def test_long_examples_are_printed_below_each_other() -> None:
    """Examples that do not fit in two columns are printed below each other, so that no line is cut."""
    assert "gantry a   does it" in examples(("gantry a", "does it"))
    assert "\n      does it" in examples(("gantry " + "x" * 90, "does it"))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\r\n\ntwo", [b"one", b"", b"two"]),
        (b"x" * (CHUNK_BYTES * 3) + b"\nend", [b"x" * (CHUNK_BYTES * 3), b"end"]),
    ],
    ids=["nothing", "no end", "one line", "three lines", "longer than a chunk"],
)
async def test_standard_input_is_split_into_lines(tmp_path: Path, data: bytes, lines: list[bytes]) -> None:
    """Line ends are removed, the last line needs none, and an empty line is an empty message."""
    path = tmp_path / "input"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert [line async for line in standard_input_lines(descriptor)] == lines
    finally:
        os.close(descriptor)


async def test_line_is_available_immediately() -> None:
    """A line is yielded before the next one is written."""
    reader, writer = os.pipe()
    lines = standard_input_lines(reader)
    try:
        os.write(writer, b"first\nsec")
        assert await asyncio.wait_for(anext(lines), 60) == b"first"
        os.write(writer, b"ond\n")
        assert await asyncio.wait_for(anext(lines), 60) == b"second"
    finally:
        os.close(writer)
        assert [line async for line in lines] == []
        os.close(reader)
