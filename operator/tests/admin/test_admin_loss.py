"""Lost log data in the sidecar's status: the ranges, from the broker's own report or from its page."""

from __future__ import annotations

import pytest

from gantry_admin.describe import missing_range_documents, role_document
from gantry_admin.documents import RangeDocument
from gantry_status import LogRange, Phase, Status
from gantry_status.orders import HaRole, HaStatus, RangeState

ON_PAGE = tuple(LogRange(start, start + 100) for start in (0, 200, 400, 600))
ALL = [RangeState(start=start, end=start + 100, cause="middle") for start in (0, 200, 400, 600, 800)]


def status_with_loss(missing_bytes: int | None = 500) -> Status:
    """Return the status of a broker whose log lacks bytes; None if their number is unknown."""
    ranges = ON_PAGE if missing_bytes else ()
    return Status(
        published_boottime_ns=1, published_wall_ms=1, phase=Phase.SERVING,
        log_missing_bytes=missing_bytes, log_missing_ranges=ranges,
    )  # fmt: skip


def report_with_loss(missing: list[RangeState]) -> HaStatus:
    """Return the report of a broker with these missing ranges."""
    return HaStatus(
        role=HaRole.COMPARING, missing=tuple(missing), accepted=(RangeState(start=7, end=9),), damaged_bytes=42
    )


@pytest.mark.parametrize(
    ("status", "state", "starts"),
    [
        (status_with_loss(), report_with_loss(ALL), [0, 200, 400, 600, 800]),
        (status_with_loss(), None, [0, 200, 400, 600]),
        (status_with_loss(), report_with_loss([]), [0, 200, 400, 600]),
        (status_with_loss(None), report_with_loss(ALL), []),
        (None, report_with_loss(ALL), []),
    ],
    ids=["answered", "no answer", "older answer", "accepted since", "no page"],
)
def test_missing_ranges_match_the_bytes_of_the_page(
    status: Status | None, state: HaStatus | None, starts: list[int]
) -> None:
    """The report's if it agrees with the page, else the page's first four; none if the page has no loss."""
    assert [one.start for one in missing_range_documents(status, state)] == starts


def test_role_document_has_ranges_and_damage() -> None:
    """The sidecar shows the same loss and damage as `gantry ha status`."""
    document = role_document(report_with_loss(ALL[:1]))

    assert document.missing == [RangeDocument(start=0, end=100)]
    assert document.accepted == [RangeDocument(start=7, end=9)]
    assert document.damaged_bytes == 42
