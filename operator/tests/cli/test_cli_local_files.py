"""The files of a local group: replaced as a whole after a comparison, and never used when damaged."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from local_group_kit import planned

from gantry_cli.errors import CliError
from gantry_cli.local.group_run import wait_for_leftover_processes
from gantry_cli.local.group_status import LocalGroupStatus
from gantry_cli.local.lease import LeaseFile
from gantry_cli.local.records import GroupRecord, MemberHold
from gantry_cli.local.state import GroupState, read_json_file
from gantry_cli.processes import boot_id_of
from gantry_spec.lease import Goal, LeaseRecord
from gantry_spec.manifest.annotations import parse_requests
from gantry_spec.observed import LastReport

MIB = 1 << 20


def lease_record(epoch: int) -> LeaseRecord:
    return LeaseRecord(epoch=epoch, goal=Goal(why="a test"))


def test_lease_is_replaced_only_at_the_expected_version(tmp_path: Path) -> None:
    """Compare and swap: a second write for the same version changes nothing; another process reads the last one."""
    lease = LeaseFile(tmp_path / "lease-0.json", lambda: 7)

    assert lease.observed.record is None and lease.observed.seen_ms == 7
    assert lease.write(None, lease_record(1000))
    assert not lease.write(None, lease_record(2000)), "expected a refusal, because another write came first"
    assert lease.write("1", lease_record(3000))

    found = LeaseFile(tmp_path / "lease-0.json", lambda: 9).observed
    assert found.record is not None and (found.record.epoch, found.record.version, found.seen_ms) == (3000, "2", 9)


def test_accepted_loss_is_written_to_the_lease(tmp_path: Path) -> None:
    """The Lease contains the size of ``gantry promote --accept-loss``."""
    [order] = parse_requests({"gantry.dev/promote": "0", "gantry.dev/accept-loss": "64Mi"}).promotions
    goal = Goal(why="a promotion was requested", promotion_request=order.id, loss_accepted=order.loss_accepted)

    LeaseFile(tmp_path / "l", lambda: 0).write(None, LeaseRecord(epoch=1000, goal=goal))

    found = LeaseFile(tmp_path / "l", lambda: 0).observed.record
    assert found is not None and found.goal is not None and found.goal.loss_accepted == 64 * MIB


@pytest.mark.parametrize(
    "name", ["group.json", "lease-0.json", "annotations.json", "manifest.yaml", "last-reports.json"]
)
@pytest.mark.parametrize("content", [b"", b'{"epoch"', b"\xff\xfe", b"[1]"], ids=["empty", "torn", "binary", "other"])
def test_damaged_file_is_an_error_with_a_remedy(tmp_path: Path, name: str, content: bytes) -> None:
    """A damaged file is never used in part; the error names it and the remedy."""
    state = GroupState(tmp_path)
    (tmp_path / name).write_bytes(content)
    readers: dict[str, Callable[[], object]] = {
        "group.json": state.read_group,
        "lease-0.json": lambda: LeaseFile(state.lease(0), lambda: 0),
        "annotations.json": state.read_annotations,
        "manifest.yaml": state.read_manifest,
        "last-reports.json": lambda: state.read_last_reports("boot"),
    }

    with pytest.raises(CliError) as caught:
        readers[name]()

    text = caught.value.format_message()
    assert str(tmp_path / name) in text and " -- " in text and "\n" not in text


def test_token_is_created_once_and_private(tmp_path: Path) -> None:
    """Every run has the same token, in a file that only its owner can read; a damaged file is an error."""
    state = GroupState(tmp_path)
    token = state.token()

    assert len(token) >= 32 and state.token() == token
    assert state.token_file.stat().st_mode & 0o777 == 0o600
    state.token_file.write_text("nothing")
    with pytest.raises(CliError, match="damaged"):
        state.token()


def test_files_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    """Their names and fields count until the first write replaces them."""
    state = GroupState(tmp_path)
    (tmp_path / "words.json").write_text(
        '{"machine_boot":"monday","words":{"0":{"epoch":1000,"asked_ms":5,"wrote":7}}}'
    )
    (tmp_path / "held.json").write_text('[{"name":"master-0","until_ms":100,"machine_boot":"monday"}]')
    (tmp_path / "lease-0.json").write_text(
        '{"version":"4","epoch":2000,"reigns":[{"epoch":2000,"master":1,"identity":"a"}],'
        '"goal":{"why":"a promotion was requested","wish":"0=2"}}'
    )

    reports, holds = state.read_last_reports("monday"), state.read_holds()
    lease = LeaseFile(state.lease(0), lambda: 0)
    record = lease.observed.record

    assert (reports[0].wrote, holds[0].name) == (7, "master-0")
    assert record is not None and record.newest is not None and record.goal is not None
    assert (record.newest.master, record.goal.promotion_request) == (1, "0=2")
    state.write_last_reports("monday", reports)
    state.write_holds(holds)
    assert lease.write("4", record)
    assert (state.read_last_reports("monday"), state.read_holds()) == (reports, holds)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["holds.json", "last-reports.json", "lease-0.json"]
    assert not {"reigns", "wish"} & set(re.findall(r'"(\w+)":', (tmp_path / "lease-0.json").read_text()))


def test_status_of_a_supervisor_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """A supervisor that was started before an upgrade keeps writing the former names."""
    member = {"name": "master-0", "shard": 0, "number": 1, "process": "running", "pid": 7, "starts": 1, "address": "",
              "sidecar_url": "", "trouble": "connecting", "seen_ago_ms": 9}  # fmt: skip
    outlook = {"shard": 0, "candidates": [{"number": 2, "has_voice": True}]}
    document = {"at_ms": 1, "group": "g", "pid": 7, "started_at_ms": 1, "name_servers": [], "members": [member],
                "conditions": [{"type": "Ready", "is_so": True, "reason": "Ready", "message": ""}],
                "ledgers": [{"shard": 0, "observed_ms": 1, "bound": "disk"}], "decision": [], "outlook": [outlook],
                "events": []}  # fmt: skip
    (tmp_path / "decision.json").write_bytes(msgspec.json.encode(document))

    status = read_json_file(tmp_path / "decision.json", LocalGroupStatus, "")

    assert status is not None
    assert (status.members[0].problem, status.ledgers[0].bottleneck) == ("connecting", "disk")
    assert status.outlook[0].candidates[0].has_vote
    assert (status.members[0].report_age_ms, status.conditions[0].is_true) == (9, True)


def test_last_reports_of_another_boot_are_dropped(tmp_path: Path) -> None:
    """Their times are of another clock."""
    state = GroupState(tmp_path)
    state.write_last_reports("monday", {0: LastReport(epoch=1000, asked_ms=5, wrote=7)})

    assert state.read_last_reports("monday")[0].wrote == 7
    assert state.read_last_reports("tuesday") == {}


def test_member_is_held_down_until_its_time_is_over(tmp_path: Path) -> None:
    """Only this member is held down, and only for that time; a damaged file holds no member."""
    state = GroupState(tmp_path)
    state.write_holds([MemberHold(name="master-0", until_ms=100, machine_boot="monday")])

    assert state.is_held("master-0", 99, "monday") and not state.is_held("master-0", 100, "monday")
    assert not state.is_held("slave-0-1", 1, "monday")
    assert not state.is_held("master-0", 1, "tuesday"), "a time of another boot was used, which has another clock"
    state.holds_file.write_bytes(b"{")
    assert not state.is_held("master-0", 1, "monday")


def test_process_is_identified_by_more_than_its_pid(tmp_path: Path) -> None:
    """A pid that belongs to another process by now is not a leftover process, and is not waited for."""
    record = planned(tmp_path, "{}")
    mine = boot_id_of(os.getpid())
    record.members[0].pid, record.members[0].boot_id = os.getpid(), f"{mine}0"

    events: list[str] = []
    wait_for_leftover_processes(record, events.append)

    assert mine.startswith(f"{os.getpid()}-") and events == [] and boot_id_of(2**22 + 1) == ""


def test_group_json_holds_no_secret(tmp_path: Path) -> None:
    """The console's address is in it, without the token."""
    state = GroupState(tmp_path)
    token = state.token()
    state.write_group(planned(tmp_path, "{}"))

    text = state.group_file.read_text()
    assert token not in text and "/console/" in text
    assert msgspec.json.decode(text.encode(), type=GroupRecord).name == "crew"
