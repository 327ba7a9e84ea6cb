"""The copy of a log behind a sidecar: which requests are retried, which are holes, and which end the audit."""

from __future__ import annotations

import json
from typing import Final

import pytest
from spark_kit.scripted_sidecar import Scripted, ScriptedSidecar

from gantry_pipelines.audit.errors import CopyUnreachable, Expired
from gantry_pipelines.audit.model import Span
from gantry_pipelines.audit.settings import SidecarAccess
from gantry_pipelines.audit.sidecar import SidecarCopy
from gantry_testing.ports import free_ports

LOG: Final[Scripted] = (200, {}, json.dumps({"begin": 0, "end": 500, "range_bytes_max": 1 << 20}).encode())
UNREADABLE: Final[Scripted] = (503, {}, b'{"reason": "cannot read"}')


def copy_at(sidecar: ScriptedSidecar) -> SidecarCopy:
    return SidecarCopy(sidecar.url, SidecarAccess((("*", "secret-token"),), patience_ms=10_000))


def test_truncated_answer_is_requested_again() -> None:
    """A truncated document is requested again; each request has the token."""
    with ScriptedSidecar((200, {"Content-Length": "99"}, b'{"begin": 0'), LOG) as sidecar:
        copy = copy_at(sidecar)

        assert copy.state().span == Span(0, 500)
        assert [headers["authorization"] for _, headers in sidecar.requests] == ["Bearer secret-token"] * 2
        copy.close()


def test_unreadable_range_is_a_hole() -> None:
    """A range that an available sidecar cannot read is a hole; the readable bytes before it are kept."""
    with ScriptedSidecar(LOG, (206, {}, b"x" * 60), UNREADABLE, LOG) as sidecar:
        copy = copy_at(sidecar)
        copy.state()
        found = copy.read(100, 200)
        copy.close()

    assert (found.data, found.holes) == (b"x" * 60 + bytes(40), (Span(160, 200),))
    assert [headers.get("range") for _, headers in sidecar.requests[1:3]] == ["bytes=100-199", "bytes=160-199"]


def test_expired_range_is_no_finding() -> None:
    """A range that retention has deleted raises Expired: the next audit begins after it."""
    with ScriptedSidecar(LOG, (410, {}, b'{"reason": "gone"}')) as sidecar:
        copy = copy_at(sidecar)
        copy.state()
        with pytest.raises(Expired, match="gone"):
            copy.read(100, 200)
        copy.close()


def test_units_are_requested_by_the_encoded_topic_name() -> None:
    """A topic may contain a percent sign; units that the sidecar does not return are zeros."""
    with ScriptedSidecar((200, {}, b"u" * 20), (416, {}, b"{}")) as sidecar:
        copy = copy_at(sidecar)
        found = copy.units("%RETRY%readers", 3, 7, 2)
        copy.close()

    assert found == b"u" * 20 + bytes(20)
    assert [path for path, _ in sidecar.requests] == [
        "/v1/log/queues/%25RETRY%25readers/3/units?from=7&count=2",
        "/v1/log/queues/%25RETRY%25readers/3/units?from=8&count=1",
    ]


def test_unavailable_sidecar_ends_the_audit() -> None:
    """After the timeout the error has the address of the sidecar."""
    (port,) = free_ports(1)
    copy = SidecarCopy(f"http://127.0.0.1:{port}", SidecarAccess(patience_ms=0))

    with pytest.raises(CopyUnreachable, match=f"127.0.0.1:{port}"):
        copy.state()
