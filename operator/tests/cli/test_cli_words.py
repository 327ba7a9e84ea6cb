"""What the command line reads and writes, without any server: times, numbers, rates, restarts, help."""

import asyncio
import os
import re
import shlex
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gantry_cli.errors import EXIT_ABSENT, EXIT_FAILED, EXIT_USAGE, CliError, explain
from gantry_cli.examples import examples
from gantry_cli.main import SECTIONS, cli, version_text
from gantry_cli.messages.produce import CHUNK_BYTES, standard_input_lines
from gantry_cli.processes import WINDOW_S, RestartPolicy
from gantry_cli.rates import rates_between, read_facts
from gantry_cli.text import Start, bytes_text, duration_text, parse_start, rate_text
from gantry_client import (
    Attempt,
    BrokerRefused,
    ClientError,
    InvalidMessage,
    NoMaster,
    NoRoute,
    RequestTimeout,
    SendFailed,
    Unavailable,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start()),
        (" Latest ", Start(is_latest=True)),
        ("90s", Start(timestamp_ms=NOW_MS - 90_000)),
        ("10m", Start(timestamp_ms=NOW_MS - 600_000)),
        ("2h", Start(timestamp_ms=NOW_MS - 7_200_000)),
        ("1d", Start(timestamp_ms=NOW_MS - 86_400_000)),
        ("99999d", Start(timestamp_ms=0)),
        ("1970-01-02T00:00:00+00:00", Start(timestamp_ms=86_400_000)),
    ],
)
def test_places_to_begin_are_read_as_people_write_them(text: str, start: Start) -> None:
    """Ends, ages and moments."""
    assert parse_start(text, NOW_MS) == start


def test_moment_without_a_zone_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time as the clock on the wall shows it."""
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        assert parse_start("1970-01-01T05:00", NOW_MS) == Start(timestamp_ms=2 * 3_600_000)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "10", "m10", "-5m", "5 weeks"])
def test_other_places_to_begin_are_refused_with_what_can_be_written(text: str) -> None:
    """The text that was typed and the forms that work."""
    with pytest.raises(ValueError, match="earliest, latest"):
        parse_start(text, NOW_MS)


def test_numbers_are_written_for_people() -> None:
    """Few digits, units last."""
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 * 2**30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    assert [rate_text(r) for r in (0.0, 0.25, 9.96, 12345.6)] == ["0.0", "0.2", "10.0", "12,346"]
    assert [duration_text(s) for s in (0, 59.9, 61, 3725, 90_061)] == ["0s", "59s", "1m 1s", "1h 2m", "1d 1h"]


def test_rates_are_differences_and_zero_over_a_restart() -> None:
    """Two moments make a rate; counters that began again make none, and never a negative one."""
    table = {"msgPutTotalTodayNow": "100", "msgGetTotalTodayNow": "50", "bootTimestamp": "1"}
    earlier = read_facts(table, 10.0)
    later = read_facts(table | {"msgPutTotalTodayNow": "300", "msgGetTotalTodayNow": "60"}, 12.0)
    restarted = read_facts({"msgPutTotalTodayNow": "5", "bootTimestamp": "2"}, 14.0)

    assert (rates_between(earlier, later).puts_per_s, rates_between(earlier, later).gets_per_s) == (100.0, 5.0)
    assert rates_between(later, restarted).puts_per_s == 0.0
    assert rates_between(later, later).puts_per_s == 0.0


def test_facts_are_read_from_java_brokers_and_from_partial_tables() -> None:
    """Missing and unreadable values are zero, or None where zero would be a lie."""
    java = read_facts(
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
    empty = read_facts({"commitLogDiskRatio": "-1.0", "putTps": "", "msgPutTotalTodayNow": "x"}, 0.0)

    assert (java.puts_per_s, java.gets_per_s, java.stored_bytes, java.disk_used_ratio) == (12.5, 7.5, 1000, 0.25)
    assert (empty.puts, empty.puts_per_s, empty.disk_used_ratio, empty.connections) == (0, 0.0, None, None)


def test_restarts_come_ever_later_and_not_for_ever() -> None:
    """At once, then 1, 2, 4, 8 s, then never; deaths of long ago do not count."""
    policy = RestartPolicy(delay_s_max=8.0, short_lives_max=6)

    assert [policy.delay_after_death(float(n), float(n)) for n in range(6)] == [0.0, 1.0, 2.0, 4.0, 8.0, None]
    assert policy.delay_after_death(WINDOW_S, WINDOW_S * 3) == 0.0


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (NoRoute("orders", "unknown"), EXIT_ABSENT, "gantry topic create orders"),
        (NoMaster("orders", ("shard-0",)), EXIT_FAILED, "no master is registered for 'shard-0' -- a failover may be"),
        (NoMaster("orders", ()), EXIT_FAILED, "look at `gantry status`"),
        (Unavailable("no name server answers: x"), EXIT_FAILED, "ns:1 -- start one with `gantry up`"),
        (Unavailable("the name servers know no master of any cluster"), EXIT_FAILED, "no broker is registered"),
        (Unavailable("broker x"), EXIT_FAILED, "gantry status"),
        (BrokerRefused(17, "no topic", "b:1"), EXIT_ABSENT, "17 TOPIC_NOT_EXIST"),
        (BrokerRefused(26, None, "b:1"), EXIT_ABSENT, "group does not exist"),
        (BrokerRefused(1, "boom", "b:1"), EXIT_FAILED, "boom"),
        (RequestTimeout("slow"), EXIT_FAILED, "busy or stopped"),
        (InvalidMessage("bad name"), EXIT_USAGE, "bad name"),
        (SendFailed("t", (Attempt("b", RequestTimeout("slow")),), "gave up"), EXIT_FAILED, "may have stored it"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ClientError) else None,
)
def test_every_failure_is_one_line_with_an_exit_code(error: ClientError, exit_code: int, words: str) -> None:
    """What happened and what to do; absent things are 3, mistyped ones 2, all else 1."""
    shown = explain(error, "ns:1")

    assert shown.exit_code == exit_code
    assert words in shown.message and "\n" not in shown.message


def test_error_text_is_one_line_whatever_it_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Line breaks in a remark from the wire do not break the line."""
    CliError("first\nsecond", "do\tthis").show()

    assert capsys.readouterr().err == "gantry: first second -- do this\n"


def root_context() -> click.Context:
    """As when it is typed. A command keeps the help option of its first context for the rest of the process."""
    return click.Context(cli, info_name="gantry", **cli.context_settings)


def commands() -> list[tuple[str, click.Command]]:
    """Every command and subcommand by the words that one types."""
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
def test_help_teaches_with_examples(words: str, command: click.Command) -> None:
    """Each command's help says what it does and shows commands that can be typed."""
    text = command.get_help(click.Context(command, parent=root_context(), info_name=words))

    assert command.help is not None and len(command.help) > 20
    assert "Examples:" in text
    assert re.search(rf"^\s+(.*\| )?gantry {words.split()[0]}", text, re.MULTILINE)


WORDS_OF_SHELLS = re.compile(r"\s(?:\||>(?! \d)|&&)\s|\$\(")


def typed_examples(command: click.Command) -> list[list[str]]:
    """The `gantry ...` of each example, as a shell would hand them over: without pipes, redirections and meanings."""
    lines = [line for line in (command.epilog or "").splitlines() if line.startswith("  ") and "gantry" in line]
    found = []
    for line in lines:
        said = re.split(r"(?<=\S) {3,}", line.strip())[0]
        [part] = [part for part in WORDS_OF_SHELLS.split(said) if re.match(r'"?gantry ', part.strip())] or [None]
        if part is not None:
            found.append(shlex.split(part.strip().rstrip('")') if "$(" in said else part)[1:])
    return found


def parse(words: list[str]) -> click.Context:
    """Read a command line as far as the command itself, and run nothing. Raises what a user would see."""
    context = cli.make_context("gantry", list(words))
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, inner, rest = command.resolve_command(context, [*getattr(context, "_protected_args", ()), *context.args])
        assert inner is not None and name is not None
        command, context = inner, inner.make_context(name, rest, parent=context)
    return context


EXAMPLES = [(words, typed) for words, command in commands() for typed in typed_examples(command)]


@pytest.mark.parametrize(("words", "typed"), EXAMPLES, ids=[" ".join(typed) for _, typed in EXAMPLES])
def test_every_example_can_be_typed(
    words: str, typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options and arguments of each example exist and take what they are given; that of a command is its own."""
    (tmp_path / "group.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GANTRY_NAMESRV", "127.0.0.1:9876")
    monkeypatch.setattr("gantry_cli.ha.commands.default_sockets", lambda: (tmp_path / "control.sock",))

    context = parse(typed)

    assert context.command_path.split()[1] == words.split()[0]


def test_every_command_has_an_example_that_is_checked() -> None:
    """The parser of examples finds one in each command's help."""
    assert {words for words, _ in commands()} - {words for words, _ in EXAMPLES} == set()


@pytest.mark.parametrize("typed", [["status", "--no-such-option"], ["topic", "list", "-n", "nonsense"], ["frobnicate"]])
def test_example_that_cannot_be_typed_is_caught(typed: list[str]) -> None:
    """The check above would notice."""
    with pytest.raises(click.UsageError):
        parse(typed)


def test_overview_says_what_the_commands_say() -> None:
    """The overview's summaries are the first lines of the commands' own help, and each command is listed once."""
    context = root_context()
    listed = [(name, entry.summary) for entries in SECTIONS.values() for name, entry in entries.items()]
    overview = CliRunner().invoke(cli, ["--help"]).stdout

    assert len({name for name, _ in listed}) == len(listed)
    for name, summary in listed:
        command = cli.get_command(context, name)
        assert command is not None and command.help is not None
        assert command.help.splitlines()[0] == summary
        assert summary in overview
    assert cli.get_command(context, "frobnicate") is None


def test_version_names_the_distribution_and_python() -> None:
    """One line that a bug report can carry."""
    result = CliRunner().invoke(cli, ["--version"])

    assert result.exit_code == 0 and result.stdout == version_text() + "\n"
    assert re.fullmatch(r"gantry \d+\.\d+\.\d+\S* \(Python 3\.\d+\.\d+\S*\)", version_text())


def test_examples_stand_side_by_side_only_where_they_fit() -> None:
    """Wide ones go below each other, so that no line of help is cut."""
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
async def test_standard_input_is_read_by_line(tmp_path: Path, data: bytes, lines: list[bytes]) -> None:
    """Ends are taken off, the last line needs none, and an empty line is an empty message."""
    path = tmp_path / "input"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert [line async for line in standard_input_lines(descriptor)] == lines
    finally:
        os.close(descriptor)


async def test_line_comes_as_soon_as_it_is_typed() -> None:
    """A line is handed over before the next one exists."""
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
