"""Backups as the snapshots of a group show them, and what is missing for the present one."""

from __future__ import annotations

from typing import Any

import pytest

from gantry_spec.backups import (
    POINT_ANNOTATION,
    Point,
    Snapshot,
    Source,
    backups_of,
    next_steps,
    point_of,
    snapshot_document,
    snapshot_name,
)

POINT = Point(member=2, last_epoch=7, flushed=4096, marked_at="2026-11-29T03:00:00Z")


def snapshot(
    backup: str, shard: int = 0, *, is_ready: bool = True, is_scheduled: bool = True, group_uid: str = "g-1"
) -> dict[str, Any]:
    """Return a snapshot as the API server has it; its backup is named by the day."""
    source = Source("shop", "orders", group_uid, f"data-orders-{shard}-slave-0", f"claim-{shard}")
    document = snapshot_document(
        source, backup, shard, snapshot_class="", point=POINT, shards=2, is_scheduled=is_scheduled
    )
    head = {"uid": f"uid-{backup}-{shard}", "creationTimestamp": f"2026-11-{backup[:2]}T00:00:00Z"}
    document["metadata"] |= head
    document["status"] = {"readyToUse": is_ready} | ({"creationTime": head["creationTimestamp"]} if is_ready else {})
    return document


def whole(backup: str, **more: Any) -> list[dict[str, Any]]:
    return [snapshot(backup, shard, **more) for shard in range(2)]


def test_snapshot_names_its_backup_shard_and_point() -> None:
    """What is written into a snapshot is read back from it."""
    (backup,) = backups_of(whole("01"))
    assert (backup.name, sorted(backup.snapshots), backup.is_complete) == ("01", [0, 1], True)
    assert backup.snapshots[1].point == POINT
    assert backup.snapshots[1].name == snapshot_name("orders", 1, "01") == "orders-1-01"


@pytest.mark.parametrize(
    "documents",
    [
        [snapshot("01", 0)],
        [snapshot("01", 0), snapshot("01", 1, is_ready=False)],
        [snapshot("01", 0), snapshot("01", 1) | {"status": {}}],
    ],
    ids=["shard missing", "not ready", "no status"],
)
def test_backup_is_complete_only_with_every_shard_ready(documents: list[dict[str, Any]]) -> None:
    """A backup from which a shard cannot be restored does not count."""
    assert [one.is_complete for one in backups_of(documents)] == [False]


def test_snapshot_with_a_changed_point_is_of_no_use() -> None:
    """A backup whose point cannot be read is not complete."""
    documents = whole("01")
    documents[1]["metadata"]["annotations"][POINT_ANNOTATION] = "{}"
    assert [one.is_complete for one in backups_of(documents)] == [False]
    assert point_of("no JSON") is None


def test_other_snapshots_and_those_being_deleted_are_ignored() -> None:
    """Snapshots that a person made, and those that are about to be gone, are no part of a backup."""
    foreign = snapshot("01")
    del foreign["metadata"]["labels"]["gantry.dev/backup"]
    deleted = snapshot("02")
    deleted["metadata"]["deletionTimestamp"] = "2026-11-29T03:00:00Z"
    assert backups_of([foreign, deleted]) == []


def is_lost(one: Snapshot) -> bool:
    """Say that the points of all snapshots that are not cut are lost."""
    return True


def is_kept(one: Snapshot) -> bool:
    return False


def removed(documents: list[dict[str, Any]], present: str, keep: int) -> list[str]:
    """Return the names of the snapshots that are deleted."""
    return sorted(one.name for one in next_steps(backups_of(documents), present, 2, keep, is_kept).removed)


def test_shards_without_a_snapshot_are_missing() -> None:
    """A backup that was begun by an earlier operator is continued."""
    backups = backups_of([snapshot("01", 0, is_ready=False)])
    assert next_steps(backups, "01", 2, 7, is_kept) == ((1,), (0,), ())
    assert next_steps([], "02", 3, 7, is_kept).missing == (0, 1, 2)


def test_backups_before_the_newest_complete_ones_are_removed() -> None:
    """With three kept, what is older than the third complete backup goes; nothing newer does."""
    documents = [one for day in ("01", "03", "04", "05") for one in whole(day)]
    assert removed(documents, "", 3) == ["orders-0-01", "orders-1-01"]


def test_incomplete_backup_of_the_schedule_is_removed_when_another_one_comes() -> None:
    """It would never be completed. Without a later one it may still be."""
    documents = [*whole("01"), snapshot("02", 0)]
    assert removed(documents, "", 7) == []
    assert removed(documents, "03", 7) == ["orders-0-02"]
    assert removed([*documents, *whole("04")], "", 7) == ["orders-0-02"]


def test_backup_that_only_waits_for_its_upload_is_kept() -> None:
    """Its driver completes it without the operator; it goes when a later one is complete."""
    uploading = whole("01", is_ready=False)
    for one in uploading:
        one["status"]["creationTime"] = "2026-11-01T00:00:01Z"
    assert removed(uploading, "02", 7) == []
    assert removed([*uploading, *whole("02")], "", 7) == ["orders-0-01", "orders-1-01"]


def test_snapshots_for_another_number_of_shards_are_made_again() -> None:
    """The group was scaled while the backup was made."""
    steps = next_steps(backups_of([snapshot("01", 0)]), "01", 3, 7, is_kept)
    assert [one.name for one in steps.removed] == ["orders-0-01"]


def test_nothing_is_removed_before_enough_backups_are_complete() -> None:
    """Backups that failed never replace a complete one."""
    documents = [*whole("01"), *whole("02", is_ready=False)]
    assert removed(documents, "02", 1) == []
    assert removed([*whole("01"), *whole("02")], "", 2) == []


def test_requested_backup_is_kept() -> None:
    """Only backups of the schedule count, and only they are removed."""
    documents = [*whole("01", is_scheduled=False), *whole("02"), *whole("03"), *whole("04", is_scheduled=False)]
    assert removed(documents, "", 1) == ["orders-0-02", "orders-1-02"]


def test_present_backup_is_never_removed() -> None:
    """A backup that is still being made may be older than complete ones."""
    documents = [snapshot("01", 0), *whole("02"), *whole("03")]
    assert removed(documents, "01", 1) == ["orders-0-02", "orders-1-02"]


def test_snapshot_that_has_lost_its_point_is_made_again() -> None:
    """One that the driver has cut is kept, also if its volume has changed since."""
    documents = [snapshot("01", 0, is_ready=False), snapshot("01", 1)]
    steps = next_steps(backups_of(documents), "01", 2, 7, is_lost)
    assert [one.name for one in steps.removed] == ["orders-0-01"]


def test_groups_of_one_name_have_separate_backups() -> None:
    """A later group of the name completes and counts only its own snapshots."""
    documents = [snapshot("01", 0, group_uid="g-1"), snapshot("01", 1, group_uid="g-2")]
    assert [(one.group_uid, one.is_complete) for one in backups_of(documents)] == [("g-1", False), ("g-2", False)]
