"""`gantry store`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from looking.looks import (
    LOG,
    STORES,
    filled,
    gantry,
    look,
)

from gantry_broker.store.inspect.verify import Verifier
from gantry_testing.store_world import make_world

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
        ("empty", "dump-queue", 3),
    ],
)
def test_the_exit_code_says_whether_damage_was_found(store: str, command: str, code: int, tmp_path: Path) -> None:
    """0 good, 1 damage, 3 it is not there."""
    STORES[store](tmp_path)

    assert look(command, str(tmp_path / "store")).exit_code == code


@pytest.mark.parametrize("words", [["inspect"], ["verify"], ["dump"], ["repair-plan"], ["recover", "--yes"]], ids=str)
def test_a_directory_that_is_not_there_is_one_line_with_a_remedy(words: list[str], tmp_path: Path) -> None:
    """No traceback, and nothing is created."""
    result = gantry(*words, str(tmp_path / "nowhere"))

    assert result.exit_code == 3
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

    result = look("verify", str(tmp_path / "store"))

    assert result.exit_code == 130
    assert "interrupted at 0: nothing is said about what follows" in result.output


# -- what it prints ----------------------------------------------------------------------------------------------------


def test_inspect_shows_a_store_at_a_glance(tmp_path: Path) -> None:
    """Whose it is, how it ended, what is in it, and what a start would do."""
    world = filled(tmp_path)
    identity = world.store.identity
    end = world.store.log.wrote
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
    assert look("verify", world.root).output.splitlines()[-1] == "good"
    world.overwrite(LOG, 5000, b"XXXX")

    damaged = look("verify", world.root).output.splitlines()

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


def test_dump_goes_over_the_end_of_a_file(tmp_path: Path) -> None:
    """A blank record that closes a file is neither a message nor damage, however much it leaves free."""
    world = make_world("real", tmp_path)
    world.open()
    for _ in range(5):
        world.append([world.draft(body=bytes(10_000))])
    world.close()

    result = gantry("dump", world.root, "--body", "none", "--json")

    assert result.exit_code == 0
    assert [json.loads(line)["offset"] for line in result.output.splitlines()] == sorted(world.records)
    assert look("verify", world.root).output.splitlines()[-1] == "good"


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
