"""`gantry store`: its output and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_commands.store_states import (
    LOG,
    STORES,
    fill_store,
    gantry_store,
    run_reading_command,
)

from gantry_broker.store.inspect.repair import RepairPlan
from gantry_broker.store.inspect.verify import Verifier
from gantry_cli.store.text import plan_text
from gantry_testing.store_world import make_world

# -- exit codes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "command", "code"),
    [
        ("clean", "verify", 0),
        ("killed", "verify", 0),
        ("damaged", "verify", 1),
        ("empty", "verify", 0),
        ("garbage", "verify", 1),
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
def test_exit_code_reflects_damage(store: str, command: str, code: int, tmp_path: Path) -> None:
    """The exit code is 0 without damage, 1 with damage (`inspect` reports none), and 3 if the queue is not found."""
    STORES[store](tmp_path)

    assert run_reading_command(command, str(tmp_path / "store")).exit_code == code


@pytest.mark.parametrize(
    ("cut_records", "verdict", "is_lossless"),
    [
        (0, "no acknowledged data is lost", True),
        (1, "lost: 300 bytes, at least 1 message", False),
        (3, "lost: 300 bytes, at least 3 messages", False),
    ],
)
def test_whole_records_in_the_torn_tail_are_a_loss(cut_records: int, verdict: str, is_lossless: bool) -> None:
    """The text and the exit code of `repair-plan` follow one rule; a tail without a whole record is no loss."""
    plan = RepairPlan(
        root="/s", is_in_use=False, is_clean=False, cut_bytes=300, lost_bytes=300, cut_records=cut_records
    )

    *_, last = plan_text(plan)

    assert (str(last), plan.is_lossless) == (verdict, is_lossless)


@pytest.mark.parametrize("words", [["inspect"], ["verify"], ["dump"], ["repair-plan"], ["recover", "--yes"]], ids=str)
def test_missing_directory_is_reported_with_remedy(words: list[str], tmp_path: Path) -> None:
    """The error has one line, and nothing is created."""
    result = gantry_store(*words, str(tmp_path / "nowhere"))

    assert result.exit_code == 3
    assert result.stderr.startswith("gantry: ") and "does not exist" in result.stderr
    assert "storePathRootDir" in result.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "words",
    [["verify", "--from", "10", "--to", "5"], ["dump", "--offset", "1", "--topic", "t"], ["dump", "--queue", "1"]],
    ids=str,
)
def test_contradictory_options_are_refused(words: list[str], tmp_path: Path) -> None:
    """Contradictory options are invalid usage, with exit code 2."""
    assert gantry_store(words[0], str(tmp_path), *words[1:]).exit_code == 2


def test_interrupted_verify_prints_partial_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 130, not 1, which means damage."""
    fill_store(tmp_path).close()

    def interrupted(self: Verifier) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Verifier, "_read_log", interrupted)

    result = run_reading_command("verify", str(tmp_path / "store"))

    assert result.exit_code == 130
    assert "interrupted at 0: the rest of the store was not verified" in result.output


# -- output ------------------------------------------------------------------------------------------------------------


def test_inspect_shows_summary(tmp_path: Path) -> None:
    """The summary has the writer, the last stop, the contents, and what a start would do."""
    world = fill_store(tmp_path)
    identity = world.store.identity
    end = world.store.log.wrote
    world.kill()

    text = gantry_store("inspect", world.root).output
    shown = json.loads(gantry_store("inspect", world.root, "--json").output)

    assert "written by Gantry" in text and "not cleanly stopped" in text
    assert (shown["uuid"], shown["generation"], shown["writer"]) == (identity.uuid, 1, "gantry")
    assert (shown["log"]["start"], shown["log"]["end"], shown["log"]["is_end_known"]) == (0, end, True)
    assert shown["messages"] == 220
    assert [queue["max_offset"] for queue in shown["topics"]["orders"]] == [54, 33, 33]
    through = shown["point_through"]
    assert shown["flushed"] == through
    assert shown["next_start"] == (
        f"The last run crashed: the next start would read the log from {through} on, {end - through} bytes."
    )
    world.open()
    world.close()
    assert "cleanly stopped" in gantry_store("inspect", world.root).output
    assert "read nothing" in json.loads(gantry_store("inspect", world.root, "--json").output)["next_start"]


def test_inspect_reports_missing_store(tmp_path: Path) -> None:
    """A directory without a store is reported, with what a start would do."""
    result = gantry_store("inspect", str(tmp_path))

    assert result.exit_code == 0
    assert "no store found" in result.output
    assert "The next start would create a new, empty store here." in result.output


def test_verdict_is_the_last_line_of_verify(tmp_path: Path) -> None:
    """The last line of the output is the verdict."""
    world = fill_store(tmp_path)
    world.close()
    assert run_reading_command("verify", world.root).output.splitlines()[-1] == "good"
    world.overwrite(LOG, 5000, b"XXXX")

    damaged = run_reading_command("verify", world.root).output.splitlines()

    assert damaged[-1] == "DAMAGED: at least 1 message lost (findings: 1 lost)"
    assert any("lost: 1 message: bills/0 offset 7" in line for line in damaged)


def test_dump_prints_records_as_json_lines(tmp_path: Path) -> None:
    """Each record is one line, in the order of the log."""
    world = fill_store(tmp_path)
    world.close()

    lines = gantry_store("dump", world.root, "--count", "0", "--json").output.splitlines()
    records = [json.loads(line) for line in lines]

    assert [record["offset"] for record in records] == sorted(world.records)
    assert [record["body"].encode() for record in records] == [body for *_, body in world.sent]
    assert (records[1]["topic"], records[1]["queue_id"], records[1]["queue_offset"]) == ("bills", 0, 0)


def test_dump_continues_after_end_of_file(tmp_path: Path) -> None:
    """A blank record that closes a file is neither a message nor damage."""
    world = make_world("real", tmp_path)
    world.open()
    for _ in range(5):
        world.append([world.draft(body=bytes(10_000))])
    world.close()

    result = gantry_store("dump", world.root, "--body", "none", "--json")

    assert result.exit_code == 0
    assert [json.loads(line)["offset"] for line in result.output.splitlines()] == sorted(world.records)
    assert run_reading_command("verify", world.root).output.splitlines()[-1] == "good"


def test_dump_reads_queue_from_offset(tmp_path: Path) -> None:
    """A queue is read in its order, from the requested offset."""
    world = fill_store(tmp_path)
    world.close()

    lines = gantry_store(
        "dump", world.root, "--topic", "orders", "--queue", "2", "--from", "30", "--count", "2", "--json"
    ).output.splitlines()

    assert [json.loads(line)["queue_offset"] for line in lines] == [30, 31]
    assert [json.loads(line)["body"].encode() for line in lines] == world.sent_bodies("orders", 2)[30:32]


def test_dump_shows_damaged_bytes_and_continues(tmp_path: Path) -> None:
    """A damaged record is shown with the reason, its header and its bytes; then the next record follows."""
    world = fill_store(tmp_path)
    world.close()
    world.overwrite(LOG, 5000, b"\x1b[2J")
    start = max(offset for offset in world.records if offset <= 5000)

    for words in (["--offset", "5010"], ["--topic", "bills", "--queue", "0", "--from", "7"]):
        result = gantry_store("dump", world.root, *words, "--count", "2")
        assert result.exit_code == 1
        lines = result.output.splitlines()
        assert lines[0].startswith(f"!! {start}  {len(world.records[start])} bytes  damaged: ")
        assert lines[1] == "   expected bills/0 offset 7"
        assert any(line.startswith("  >") for line in lines)
        assert "\x1b" not in result.output
        assert sum(line.startswith("@ ") for line in lines) == 1
    hole = json.loads(gantry_store("dump", world.root, "--offset", "5010", "--count", "1", "--json").output)
    assert bytes.fromhex(hole["around"])[start - hole["around_start"] :].startswith(world.records[start][:60])


def test_control_characters_of_body_are_escaped(tmp_path: Path) -> None:
    """Control characters in a body are escaped."""
    world = make_world("real", tmp_path)
    world.open()
    world.append([world.draft(body=b"\x1b[31mred\nline")])
    world.close()

    output = gantry_store("dump", world.root).output

    assert "\\x1b[31mred\nline" in output and "\x1b" not in output
