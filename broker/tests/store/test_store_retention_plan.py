"""Retention planning as tables: which files are deleted, and when sends are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.ports import DiskSpace
from gantry_broker.store.retention import (
    FILES_PER_ROUND_MAX,
    HOUR_MS,
    NOTHING_UNCONSUMED,
    LogFileFacts,
    Reason,
    RetentionFacts,
    RoomFacts,
    has_room_for,
    is_refusing,
    needs_unconsumed,
    plan_retention,
)
from gantry_broker.store.settings import RetentionSettings

SETTINGS = RetentionSettings(reserved_hours=72, delete_hours=(4,))
SIZE = 100
NOW_MS = 1_700_000_000_000
DELETE_HOUR, OTHER_HOUR = 4, 15


def files(*ages_hours: float, removable: int | None = None) -> tuple[LogFileFacts, ...]:
    """Return files of ``SIZE`` bytes from offset 1000 on, with newest messages of these ages in hours."""
    count = len(ages_hours) if removable is None else removable
    return tuple(
        LogFileFacts(1000 + n * SIZE, 1000 + (n + 1) * SIZE, NOW_MS - int(age * HOUR_MS), n < count)
        for n, age in enumerate(ages_hours)
    )


def facts(
    some: tuple[LogFileFacts, ...],
    *,
    used: int = 50,
    hour: int = OTHER_HOUR,
    unconsumed_from: int = NOTHING_UNCONSUMED,
    is_manual: bool = False,
    needed_from: int = NOTHING_UNCONSUMED,
) -> RetentionFacts:
    """Return the facts of a disk of 10,000 bytes, ``used`` percent of them used; so one file is one percent."""
    room = RoomFacts(space=DiskSpace(100 * SIZE, 100 * SIZE - used * SIZE), file_size=SIZE)
    return RetentionFacts(
        files=some, room=room, now_ms=NOW_MS, hour=hour, unconsumed_from=unconsumed_from, needed_from=needed_from,
        is_manual=is_manual,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given_facts", "deleted", "reason"),
    [
        pytest.param(facts(files(100, 90, 10)), 0, Reason.NOTHING_DUE, id="expired-but-not-the-hour"),
        pytest.param(facts(files(100, 90, 10), hour=DELETE_HOUR), 2, Reason.EXPIRED, id="expired-at-the-hour"),
        pytest.param(facts(files(72, 71), hour=DELETE_HOUR), 0, Reason.NOTHING_DUE, id="exactly-as-old-as-reserved"),
        pytest.param(facts(files(72.01, 71), hour=DELETE_HOUR), 1, Reason.EXPIRED, id="a-little-older"),
        pytest.param(facts(files(100, 90, 10), used=75), 0, Reason.NOTHING_DUE, id="at-the-used-level"),
        pytest.param(facts(files(100, 90, 10), used=76), 2, Reason.EXPIRED_SPACE, id="above-the-used-level"),
        pytest.param(facts(files(100, 90, 10), is_manual=True), 2, Reason.EXPIRED_MANUAL, id="an-administrator-asked"),
        pytest.param(facts(files(10, 9), is_manual=True), 0, Reason.NOTHING_DUE, id="asked-and-nothing-expired"),
        pytest.param(facts(files(10, 9), used=80), 0, Reason.NOTHING_DUE, id="fresh-above-the-used-level"),
        pytest.param(
            facts(files(100, 90), hour=DELETE_HOUR, unconsumed_from=1000), 2, Reason.EXPIRED, id="expired-unconsumed"
        ),
        pytest.param(facts(files(*[10.0] * 5), used=85), 0, Reason.NOTHING_DUE, id="at-the-forced-level"),
        pytest.param(facts(files(*[10.0] * 5), used=87), 2, Reason.FORCED, id="forced-only-as-many-as-it-takes"),
        pytest.param(facts(files(100, 10, 10), used=87), 2, Reason.FORCED, id="forced-counts-what-expired"),
        pytest.param(facts(files(100, 100, 10), used=86), 2, Reason.EXPIRED_SPACE, id="expired-is-more-than-forced"),
        pytest.param(
            facts(files(*[10.0] * 5), used=90, unconsumed_from=1250), 2, Reason.FORCED, id="forced-up-to-the-unconsumed"
        ),
        pytest.param(
            facts(files(*[10.0] * 5), used=90, unconsumed_from=1300), 3, Reason.FORCED, id="unconsumed-begins-a-file"
        ),
        pytest.param(
            facts(files(*[10.0] * 5, removable=1), used=90), 1, Reason.FORCED, id="forced-up-to-what-is-in-use"
        ),
        pytest.param(facts(files(*[100.0] * 5, removable=3), hour=DELETE_HOUR), 3, Reason.EXPIRED, id="expired-in-use"),
        pytest.param(facts(files(*[100.0] * 30), hour=DELETE_HOUR), 10, Reason.EXPIRED, id="ten-a-round"),
        pytest.param(facts(files(*[10.0] * 30), used=99), 10, Reason.FORCED, id="forced-ten-a-round"),
        pytest.param(facts((), used=99), 0, Reason.NOTHING_DUE, id="no-files"),
        pytest.param(facts(files(10, 100, 100), hour=DELETE_HOUR), 0, Reason.NOTHING_DUE, id="a-fresh-one-in-front"),
    ],
)
def test_planned_deletions(given_facts: RetentionFacts, deleted: int, reason: Reason) -> None:
    """Expired files at their hour, under pressure or on request; forced ones as far as needed and consumed."""
    plan = plan_retention(given_facts, SETTINGS)

    begin = given_facts.files[0].base_offset if given_facts.files else 0
    assert (plan.delete_before, plan.reason) == (begin + deleted * SIZE, reason)


def test_several_delete_hours() -> None:
    """``deleteWhen`` may list several hours, and each of them counts."""
    settings = replace(SETTINGS, delete_hours=(2, 14))

    deleted = [
        hour for hour in range(24) if plan_retention(facts(files(99, 1), hour=hour), settings).delete_before > 1000
    ]

    assert deleted == [2, 14]


def test_unconsumed_messages_are_deleted_only_with_delete_unconsumed() -> None:
    """Only ``deleteUnconsumed`` lets forced deletion pass an unconsumed message."""
    pressed = facts(files(*[10.0] * 5), used=95, unconsumed_from=1000)

    plan = plan_retention(pressed, SETTINGS)
    asked = plan_retention(pressed, replace(SETTINGS, is_unconsumed_deleted=True))

    assert (plan.delete_before, plan.blocked_reason) == (1000, Reason.BLOCKED_UNCONSUMED)
    assert (asked.delete_before, asked.reason) == (1500, Reason.FORCED_UNCONSUMED)
    assert needs_unconsumed(pressed.room.space, SETTINGS)
    assert not needs_unconsumed(pressed.room.space, replace(SETTINGS, is_unconsumed_deleted=True))
    assert not needs_unconsumed(facts((), used=85).room.space, SETTINGS)


def test_pending_timers_are_never_deleted() -> None:
    """No rule deletes a file with a pending timer message that was not stored again; the plan names the reason."""
    expired = plan_retention(facts(files(*[100.0] * 5), hour=DELETE_HOUR, needed_from=1150), SETTINGS)
    pressed = facts(files(*[10.0] * 5), used=95, needed_from=1150)
    forced = plan_retention(pressed, SETTINGS)
    asked = plan_retention(pressed, replace(SETTINGS, is_unconsumed_deleted=True))
    free = plan_retention(facts(files(*[100.0] * 5), hour=DELETE_HOUR), SETTINGS)

    assert (expired.delete_before, forced.delete_before, asked.delete_before) == (1100, 1100, 1100)
    assert forced.blocked_reason is Reason.BLOCKED_TIMERS
    assert free.delete_before > 1100


def test_reason_of_blocked_deletion() -> None:
    """If the disk needs more than may be deleted, the plan names consumers or the files in use as the reason."""
    held = plan_retention(facts(files(*[10.0] * 5), used=95, unconsumed_from=1150), SETTINGS)
    in_use = plan_retention(facts(files(*[10.0] * 5, removable=2), used=95), SETTINGS)
    enough = plan_retention(facts(files(*[10.0] * 20), used=95), SETTINGS)
    a_round = plan_retention(facts(files(*[10.0] * 10), used=99), SETTINGS)

    assert held.blocked_reason is Reason.BLOCKED_UNCONSUMED
    assert in_use.blocked_reason is Reason.BLOCKED_CURRENT
    assert enough.blocked_reason is None
    assert a_round.blocked_reason is None, (
        "expected no reason: 14 files are too many for one round of ten, and the next round continues"
    )


@given(
    ages=st.lists(st.integers(0, 200), max_size=15).map(lambda ages: sorted(ages, reverse=True)),
    removable=st.integers(0, 15),
    used=st.integers(0, 100),
    hour=st.integers(0, 23),
    unconsumed=st.integers(900, 2600) | st.just(NOTHING_UNCONSUMED),
    is_asked=st.booleans(),
    is_manual=st.booleans(),
)
def test_no_plan_breaks_a_rule(
    ages: list[int], removable: int, used: int, hour: int, unconsumed: int, is_asked: bool, is_manual: bool
) -> None:
    """With any facts: whole files, none in use, at most ten, and unexpired or unconsumed ones only when allowed."""
    settings = replace(SETTINGS, is_unconsumed_deleted=is_asked)
    some = files(*ages, removable=removable)

    plan = plan_retention(facts(some, used=used, hour=hour, unconsumed_from=unconsumed, is_manual=is_manual), settings)

    gone = [file for file in some if file.end_offset <= plan.delete_before]
    assert plan.delete_before in {1000 if some else 0, *(file.end_offset for file in some)}
    assert len(gone) <= FILES_PER_ROUND_MAX
    assert all(file.is_removable for file in gone)
    for file in gone:
        is_expired = NOW_MS - file.newest_ms > SETTINGS.reserved_hours * HOUR_MS
        assert is_expired or used > SETTINGS.forced_percent
        assert is_expired or is_asked or file.end_offset <= unconsumed
    if gone and used <= SETTINGS.used_percent_max:
        assert hour in SETTINGS.delete_hours or is_manual


# -- room ------------------------------------------------------------------------------------------------------------


def room(used: int, *, is_wanted: bool = False, was_refusing: bool = False, file_size: int = SIZE) -> RoomFacts:
    return RoomFacts(
        space=DiskSpace(100 * SIZE, 100 * SIZE - used),
        file_size=file_size,
        is_next_file_wanted=is_wanted,
        was_refusing=was_refusing,
    )


@pytest.mark.parametrize(
    ("given_room", "expected"),
    [
        pytest.param(room(9000), False, id="at-the-level"),
        pytest.param(room(9001), True, id="above-the-level"),
        pytest.param(room(8950, was_refusing=True), True, id="not-yet-a-percent-below"),
        pytest.param(room(8900, was_refusing=True), False, id="a-percent-below"),
        pytest.param(room(5000, file_size=4844, is_wanted=True), False, id="room-for-the-next-file-and-the-reserve"),
        pytest.param(room(5000, file_size=4845, is_wanted=True), True, id="no-room-for-the-next-file"),
        pytest.param(room(5000, file_size=4845), False, id="no-room-and-not-wanted-yet"),
        pytest.param(room(0, is_wanted=True), False, id="empty"),
        pytest.param(room(10_000), True, id="full"),
        pytest.param(RoomFacts(space=DiskSpace(0, 0), file_size=SIZE), False, id="unknown-size-of-the-disk"),
    ],
)
def test_when_sends_are_refused(given_room: RoomFacts, expected: bool) -> None:
    """Above the warning level, or when the next file is needed and does not fit; until one percent below it."""
    assert is_refusing(given_room, SETTINGS) is expected
    assert plan_retention(replace(facts(()), room=given_room), SETTINGS).is_refusing is expected


def test_reserve_is_small_on_small_disks_and_bounded_on_large_ones() -> None:
    """One part in 64, at most 64 MiB, stays free beside a new log file."""
    assert has_room_for(DiskSpace(64 << 20, 9 << 20), 8 << 20)
    assert not has_room_for(DiskSpace(64 << 20, (9 << 20) - 1), 8 << 20)
    assert has_room_for(DiskSpace(1 << 40, (1 << 30) + (64 << 20)), 1 << 30)
    assert not has_room_for(DiskSpace(1 << 40, (1 << 30) + (64 << 20) - 1), 1 << 30)
