"""`gantry store`: what it prints, how it ends, and that only `recover` ever touches anything."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gantry_broker.store.inspect.verify import Verifier
from gantry_broker.testing.store_world import StoreWorld, make_world
from gantry_cli.main import cli

LOG = "commitlog/00000000000000000000"
READING = {
    "inspect": ["inspect"],
    "inspect-all": ["inspect", "--all", "--json"],
    "verify": ["verify"],
    "verify-quick": ["verify", "--quick", "--json"],
    "verify-part": ["verify", "--from", "5000", "--to", "20000"],
    "dump": ["dump", "--count", "0"],
    "dump-queue": ["dump", "--topic", "orders", "--queue", "1", "--from", "3", "--body", "hex", "--json"],
    "repair-plan": ["repair-plan"],
    "repair-plan-json": ["repair-plan", "--json"],
}

HOLD = """
import sys
from pathlib import Path
from gantry_broker.testing.store_world import make_world
world = make_world("real", Path(sys.argv[1]))
world.open()
if sys.argv[2] == "hold":
    print("open", flush=True)
    sys.stdin.read()
while True:
    world.send("orders", 20)
    world.send("bills", 20, queue_id=1)
    world.store.flush_step()
    print("sent", flush=True)
"""


def gantry(*words: str) -> Result:
    return CliRunner().invoke(cli, ["store", *words])


def run(command: str, root: str, *more: str) -> Result:
    name, *options = READING[command]
    return gantry(name, root, *options, *more)


def filled(directory: Path) -> StoreWorld:
    world = make_world("real", directory)
    world.open()
    for i in range(100):
        world.send("orders", queue_id=i % 3)
        world.send("bills", queue_id=i % 2)
    world.clock.advance(60_000)
    world.store.flush_step()
    world.send("orders", 20)
    return world


@contextlib.contextmanager
def another_process(directory: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the store open, and does nothing with it (`hold`) or writes on (`write`)."""
    words = [sys.executable, "-c", HOLD, str(directory), what]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def fingerprint(directory: Path) -> dict[str, tuple[Any, ...]]:
    """Names, bytes and all times and modes of every file and directory."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted([directory, *directory.rglob("*")]):
        facts = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        times = (facts.st_mtime_ns, facts.st_ctime_ns)
        found[str(path)] = (facts.st_mode, facts.st_ino, facts.st_nlink, facts.st_size, facts.st_blocks, *times, digest)
    return found


# -- only reading ------------------------------------------------------------------------------------------------------


def leave_clean(directory: Path) -> None:
    filled(directory).close()


def leave_killed(directory: Path) -> None:
    filled(directory).kill()


def leave_damaged(directory: Path) -> None:
    world = filled(directory)
    world.kill()
    for name, position in ((LOG, 5000), ("consumequeue/orders/1/00000000000000000000", 60), ("checkpoint", 3)):
        world.overwrite(name, position, b"XXXX")
    for name in ("recovery-point.json", "store.json", f"index/{world.disk.list(world.path('index'))[0]}"):
        Path(world.path(name)).write_bytes(b"nonsense")
    shutil.rmtree(world.path("consumequeue/bills/1"))
    os.remove(world.path("commitlog/00000000000000016384"))


def leave_nothing(directory: Path) -> None:
    (directory / "store").mkdir()


def leave_rubbish(directory: Path) -> None:
    root = directory / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(os.urandom(50_000))
    (root / "commitlog" / f"{50_000:020d}").write_bytes(b"")
    (root / "consumequeue" / "topic" / "0").mkdir(parents=True)
    (root / "consumequeue" / "topic" / "0" / f"{0:020d}").write_bytes(os.urandom(5_003))
    (root / "consumequeue" / "topic" / "0" / f"{7:020d}").mkdir()
    (root / "consumequeue" / "..;rm").mkdir()
    (root / "index").mkdir()
    (root / "index" / ("2" * 17)).write_bytes(os.urandom(5_000))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_bytes(os.urandom(100))
    for name in ("checkpoint", "store.json", "recovery-point.json", "flush-failed", "lock", "abort"):
        (root / name).write_bytes(os.urandom(100))


STORES: dict[str, Callable[[Path], None]] = {
    "clean": leave_clean,
    "killed": leave_killed,
    "damaged": leave_damaged,
    "empty": leave_nothing,
    "rubbish": leave_rubbish,
}


@pytest.mark.parametrize("store", STORES, ids=str)
def test_reading_touches_nothing(store: str, tmp_path: Path) -> None:
    """Names, bytes, times, blocks: the tree is after every command what it was before, whatever state it is in."""
    STORES[store](tmp_path)
    before = fingerprint(tmp_path)

    for command in READING:
        result = run(command, str(tmp_path / "store"))
        assert result.exit_code in (0, 1, 2), (command, result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exc_info)
        assert fingerprint(tmp_path) == before, command


def test_reading_touches_nothing_of_a_store_in_use(tmp_path: Path) -> None:
    """The broker that has it open notices nothing, and is said to be there."""
    leave_killed(tmp_path)
    with another_process(tmp_path, "hold") as holder:
        before = fingerprint(tmp_path)
        for command in READING:
            assert run(command, str(tmp_path / "store")).exit_code == 0, command
            assert fingerprint(tmp_path) == before, command

        seen = json.loads(run("inspect-all", str(tmp_path / "store")).output)
        assert seen["holder_pid"] == holder.pid
        assert "A broker has it open" in seen["next_start"]
        assert "a broker has it open" in run("verify", str(tmp_path / "store")).output


@pytest.mark.parametrize("command", READING, ids=str)
def test_files_are_opened_for_reading_only(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to a store still does not even ask for it."""
    leave_damaged(tmp_path)
    opened: list[str] = []
    really_open = os.open

    def watched(path: str, flags: int, *more: Any, **named: Any) -> int:
        if str(tmp_path) in str(path):
            opened.append(path)
            assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) == 0, path
        return really_open(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", watched)

    result = run(command, str(tmp_path / "store"))

    assert opened
    assert result.exit_code in (0, 1), result.output


def test_a_store_that_is_written_at_this_moment_is_good(tmp_path: Path) -> None:
    """A real process appends all the time; its moving end is no error, and all that was there before is verified."""
    filled(tmp_path).close()
    root = str(tmp_path / "store")
    with another_process(tmp_path, "write"):
        for _ in range(5):
            result = gantry("verify", root, "--json")
            report = json.loads(result.output)
            assert result.exit_code == 0, report
            assert report["is_in_use"] and report["records"] >= 220
            assert json.loads(gantry("repair-plan", root, "--json").output)["rotten"] == []
            assert gantry("inspect", root).exit_code == 0


# -- how it ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "command", "code"),
    [
        ("clean", "verify", 0),
        ("killed", "verify", 0),
        ("damaged", "verify", 1),
        ("empty", "verify", 0),
        ("rubbish", "verify", 1),
        ("clean", "repair-plan", 0),
        ("killed", "repair-plan", 0),
        ("damaged", "repair-plan", 1),
        ("empty", "repair-plan", 0),
        ("clean", "dump", 0),
        ("damaged", "dump", 1),
        ("damaged", "inspect", 0),
        ("empty", "inspect", 0),
        ("empty", "dump-queue", 2),
    ],
)
def test_the_exit_code_says_whether_damage_was_found(store: str, command: str, code: int, tmp_path: Path) -> None:
    """0 good, 1 damage, 2 it cannot be read."""
    STORES[store](tmp_path)

    assert run(command, str(tmp_path / "store")).exit_code == code


@pytest.mark.parametrize("words", [["inspect"], ["verify"], ["dump"], ["repair-plan"], ["recover", "--yes"]], ids=str)
def test_a_directory_that_is_not_there_is_one_line_with_a_remedy(words: list[str], tmp_path: Path) -> None:
    """No traceback, and nothing is created."""
    result = gantry(*words, str(tmp_path / "nowhere"))

    assert result.exit_code == 2
    assert result.stderr.startswith("gantry: ") and "does not exist" in result.stderr
    assert "storePathRootDir" in result.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "words",
    [["verify", "--from", "10", "--to", "5"], ["dump", "--offset", "1", "--topic", "t"], ["dump", "--queue", "1"]],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(words: list[str], tmp_path: Path) -> None:
    """Exit code 2, as everywhere."""
    assert gantry(words[0], str(tmp_path), *words[1:]).exit_code == 2


def test_ctrl_c_prints_what_is_known_and_ends_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 would mean damage."""
    filled(tmp_path).close()

    def interrupted(self: Verifier) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Verifier, "_read_log", interrupted)

    result = run("verify", str(tmp_path / "store"))

    assert result.exit_code == 130
    assert "interrupted at 0: nothing is said about what follows" in result.output


# -- what it prints ----------------------------------------------------------------------------------------------------


def test_inspect_shows_a_store_at_a_glance(tmp_path: Path) -> None:
    """Whose it is, how it ended, what is in it, and what a start would do."""
    world = filled(tmp_path)
    identity = world.store.identity
    end = world.store.wrote
    world.kill()

    text = gantry("inspect", world.root).output
    seen = json.loads(gantry("inspect", world.root, "--json").output)

    assert "Gantry wrote it" in text and "not cleanly stopped" in text
    assert (seen["uuid"], seen["generation"], seen["writer"]) == (identity.uuid, 1, "gantry")
    assert (seen["log"]["start"], seen["log"]["end"], seen["log"]["is_end_known"]) == (0, end, True)
    assert seen["messages"] == 220
    assert [queue["max_offset"] for queue in seen["topics"]["orders"]] == [54, 33, 33]
    through = seen["point_through"]
    assert seen["flushed"] == through
    assert seen["next_start"] == (
        f"The last run crashed: a start would read the log from {through} on, {end - through} bytes."
    )
    world.open()
    world.close()
    assert "cleanly stopped" in gantry("inspect", world.root).output
    assert "read nothing" in json.loads(gantry("inspect", world.root, "--json").output)["next_start"]


def test_inspect_of_a_directory_without_a_store_says_so(tmp_path: Path) -> None:
    """And what a start would do with it."""
    result = gantry("inspect", str(tmp_path))

    assert result.exit_code == 0
    assert "there is no store here" in result.output
    assert "A start would make a new, empty store here." in result.output


def test_verify_ends_with_the_verdict(tmp_path: Path) -> None:
    """The last line is what somebody reads who was just woken."""
    world = filled(tmp_path)
    world.close()
    assert run("verify", world.root).output.splitlines()[-1] == "good"
    world.overwrite(LOG, 5000, b"XXXX")

    damaged = run("verify", world.root).output.splitlines()

    assert damaged[-1] == "DAMAGED: 1 lost; at least 1 message gone"
    assert any("gone: 1 message: bills/0 number 7" in line for line in damaged)


def test_dump_shows_a_record_as_json_lines(tmp_path: Path) -> None:
    """Every field of the record, one line each, in the order of the log."""
    world = filled(tmp_path)
    world.close()

    lines = gantry("dump", world.root, "--count", "0", "--json").output.splitlines()
    records = [json.loads(line) for line in lines]

    assert [record["offset"] for record in records] == sorted(world.records)
    assert [record["body"].encode() for record in records] == [body for *_, body in world.sent]
    assert (records[1]["topic"], records[1]["queue_id"], records[1]["queue_offset"]) == ("bills", 0, 0)


def test_dump_reads_a_queue_by_number(tmp_path: Path) -> None:
    """In the queue's order, from the number that was asked for."""
    world = filled(tmp_path)
    world.close()

    lines = gantry(
        "dump", world.root, "--topic", "orders", "--queue", "2", "--from", "30", "--count", "2", "--json"
    ).output.splitlines()

    assert [json.loads(line)["queue_offset"] for line in lines] == [30, 31]
    assert [json.loads(line)["body"].encode() for line in lines] == world.sent_bodies("orders", 2)[30:32]


def test_dump_shows_the_bytes_around_what_is_damaged_and_goes_on(tmp_path: Path) -> None:
    """The reason, the name that the head still has, the bytes, and then the next record."""
    world = filled(tmp_path)
    world.close()
    world.overwrite(LOG, 5000, b"\x1b[2J")
    start = max(offset for offset in world.records if offset <= 5000)

    for words in (["--offset", "5010"], ["--topic", "bills", "--queue", "0", "--from", "7"]):
        result = gantry("dump", world.root, *words, "--count", "2")
        assert result.exit_code == 1
        lines = result.output.splitlines()
        assert lines[0].startswith(f"!! {start}  {len(world.records[start])} bytes  no record: ")
        assert lines[1] == "   it was bills/0 number 7"
        assert any(line.startswith("  >") for line in lines)
        assert "\x1b" not in result.output
        assert sum(line.startswith("@ ") for line in lines) == 1
    hole = json.loads(gantry("dump", world.root, "--offset", "5010", "--count", "1", "--json").output)
    assert bytes.fromhex(hole["around"])[start - hole["around_start"] :].startswith(world.records[start][:60])


def test_a_body_cannot_upset_the_terminal(tmp_path: Path) -> None:
    """Control characters of a message are shown, not obeyed."""
    world = make_world("real", tmp_path)
    world.open()
    world.append([world.draft(body=b"\x1b[31mred\nline")])
    world.close()

    output = gantry("dump", world.root).output

    assert "\\x1b[31mred\nline" in output and "\x1b" not in output


# -- recover -----------------------------------------------------------------------------------------------------------


def test_recover_leaves_a_crashed_store_cleanly_stopped(tmp_path: Path) -> None:
    """What a start does, without a broker: the tail is cut, queues are made whole, `abort` is gone."""
    world = filled(tmp_path)
    end = world.store.wrote
    world.kill()
    world.overwrite(f"commitlog/{end - end % 16384:020d}", end % 16384, b"half a record")
    shutil.rmtree(world.path("consumequeue/bills"))
    index_sizes = {path.stat().st_size for path in (tmp_path / "store" / "index").iterdir()}

    result = gantry("recover", world.root, "--yes", "--json")
    report = json.loads(result.output)

    assert result.exit_code == 0
    assert (report["end"], report["cut_bytes"], report["queues_rebuilt"]) == (end, 13, [["bills", 0], ["bills", 1]])
    assert not os.path.exists(world.path("abort"))
    assert run("verify", world.root).output.splitlines()[-1] == "good"
    assert {path.stat().st_size for path in (tmp_path / "store" / "index").iterdir()} == index_sizes
    assert gantry("recover", world.root, "--yes").exit_code == 0, "it can be done again"


def test_recover_asks_first(tmp_path: Path) -> None:
    """It says what will happen, and without a yes nothing does."""
    world = filled(tmp_path)
    world.kill()
    before = fingerprint(tmp_path)

    result = CliRunner().invoke(cli, ["store", "recover", world.root], input="n\n")

    assert result.exit_code == 2
    assert "a start would read the log from" in result.stderr
    assert fingerprint(tmp_path) == before


def test_recover_says_what_was_lost(tmp_path: Path) -> None:
    """Rot is stepped over and makes the exit code."""
    world = filled(tmp_path)
    world.kill()
    os.remove(world.path("recovery-point.json"))
    world.overwrite(LOG, 5000, b"XXXX")

    result = gantry("recover", world.root, "--yes")

    assert result.exit_code == 1
    assert "rot, stepped over" in result.output


def test_recover_refuses_while_a_broker_runs(tmp_path: Path) -> None:
    """The broker goes on, and nothing was touched."""
    leave_killed(tmp_path)
    with another_process(tmp_path, "hold") as holder:
        before = fingerprint(tmp_path)

        result = gantry("recover", str(tmp_path / "store"), "--yes")

        assert result.exit_code == 2
        assert f"pid {holder.pid}" in result.stderr
        assert fingerprint(tmp_path) == before


def test_recover_makes_no_store_where_there_is_none(tmp_path: Path) -> None:
    """A mistyped directory stays as it is."""
    result = gantry("recover", str(tmp_path), "--yes")

    assert result.exit_code == 2
    assert "there is no store" in result.stderr
    assert list(tmp_path.iterdir()) == []
