"""The meaning of each response of a sidecar for a reader of log ranges."""

from __future__ import annotations

from typing import Any

import pytest
from spark_kit.scripted_sidecar import Scripted, ScriptedSidecar

from gantry_testing.ports import free_ports
from pyspark_rocketmq.errors import InvalidOption, Refused
from pyspark_rocketmq.model import TransportKind
from pyspark_rocketmq.replica_view import NotYetAvailable, RangeDeleted, Unreachable, ViewError
from pyspark_rocketmq.settings import ReadSettings, TlsFiles
from pyspark_rocketmq.transport.sidecar import NoSuchQueue, Sidecar

REASON = b'{"reason": "because"}'


def part(data: bytes, begin: int) -> Scripted:
    return 206, {"Content-Range": f"bytes {begin}-{begin + len(data) - 1}/1000"}, data


def test_incomplete_range_is_requested_again() -> None:
    """After a response with only the beginning of a range, the rest is requested from the same log."""
    with ScriptedSidecar(part(b"abc", 10), part(b"de", 13), part(b"f", 15)) as sidecar:
        data = sidecar.client().log_bytes(10, 16, etag='"e-1"', fast_port=None)

        assert data.tobytes() == b"abcdef"
        assert [headers["range"] for _, headers in sidecar.requests] == ["bytes=10-15", "bytes=13-15", "bytes=15-15"]
        assert {headers["if-match"] for _, headers in sidecar.requests} == {'"e-1"'}
        assert {headers["authorization"] for _, headers in sidecar.requests} == {"Bearer secret-token"}


@pytest.mark.verify(quick=3)
@pytest.mark.parametrize(
    ("status", "error"),
    [(401, Refused), (403, Refused), (404, NoSuchQueue), (410, RangeDeleted), (412, Unreachable),
     (416, NotYetAvailable), (500, Unreachable), (503, Unreachable)],
)  # fmt: skip
def test_status_determines_the_error(status: int, error: type[Exception]) -> None:
    """Deleted, not yet available, denied, or unreachable: each error has the sidecar's own reason."""
    with ScriptedSidecar((status, {}, REASON), (status, {}, REASON)) as sidecar:
        client = sidecar.client()

        with pytest.raises(error, match=f"{status} because"):
            client.log_bytes(0, 5, etag="", fast_port=None)
        with pytest.raises(error, match=f"{status} because"):
            client.document("/v1/log")


@pytest.mark.verify
def test_busy_sidecar_is_retried() -> None:
    """429 is retried after the given time, and is an error only when the request times out."""
    busy: Scripted = (429, {"Retry-After": "0.05"}, REASON)
    with ScriptedSidecar(busy, busy, part(b"abc", 0)) as sidecar:
        assert sidecar.client().log_bytes(0, 3, etag="", fast_port=None).tobytes() == b"abc"
        assert len(sidecar.requests) == 3

    with ScriptedSidecar(*[busy] * 100) as sidecar, pytest.raises(Unreachable, match="429 because"):
        sidecar.client(request_timeout_ms=1_000).log_bytes(0, 3, etag="", fast_port=None)


@pytest.mark.parametrize(
    "answer",
    [
        (206, {"Content-Length": "5"}, b"abc"), (206, {"Content-Length": "9"}, b"abcdefghi"),
        (206, {"Content-Length": "0"}, b""), (200, {}, b"abcde"),
    ],
    ids=["cut", "more than asked", "nothing", "no range"],
)  # fmt: skip
def test_invalid_response_is_an_error_of_the_replica(answer: Scripted) -> None:
    """A response that is truncated, too long, or something else makes the reader try the next replica."""
    with ScriptedSidecar(answer) as sidecar, pytest.raises(ViewError):
        sidecar.client().log_bytes(0, 5, etag="", fast_port=None)


def test_blocked_fast_port_falls_back_to_the_main_port() -> None:
    """The main port returns the same ranges."""
    (closed,) = free_ports(1)
    with ScriptedSidecar(part(b"abc", 0)) as sidecar:
        assert sidecar.client().log_bytes(0, 3, etag="", fast_port=closed).tobytes() == b"abc"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]"], ids=["nothing", "a page", "a list"])
def test_other_server_is_not_a_sidecar(body: bytes) -> None:
    """The error names a wrong port with the response from there."""
    with ScriptedSidecar((200, {}, body)) as sidecar, pytest.raises(Unreachable, match="/v1/log"):
        sidecar.client().document("/v1/log")


def test_closed_idle_connection_is_no_error() -> None:
    """A sidecar closes idle connections; the request is repeated on a new one."""
    closing: Scripted = (200, {}, b"{}")
    with ScriptedSidecar(closing, closing) as sidecar:
        client = sidecar.client()
        client.document("/one")
        client._idle[sidecar.port][0].sock.shutdown(2)  # as the sidecar closes it

        assert client.document("/two") == {}


def test_invalid_settings_are_refused_by_name() -> None:
    """Each error names the option, or the field of the settings."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"access_key": "a"}, "accessKey and secretKey"),
        ({"sidecars": ("127.0.0.1:8080",)}, "sidecars: '127.0.0.1:8080'"),
        ({"name_servers": " ; "}, "nameServers is missing"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"patience_ms": -1}, "patience_ms"),
        ({"transport": TransportKind.FILE}, "transport=file needs the option directories"),
        ({"transport": TransportKind.HTTP}, "transport=http needs the option sidecars"),
        ({"directories": {"a:007": "/a"}}, "directories: 'a:007' does not end in a broker id"),
        ({"directories": {"a:²": "/a"}}, "directories: 'a:²' does not end in a broker id"),
    ]
    for given, text in wrong:
        with pytest.raises(InvalidOption, match=text):
            ReadSettings(**{"name_servers": "127.0.0.1:1"} | given)


def test_repr_of_settings_shows_no_secret() -> None:
    """Settings travel by pickle, and may be logged anywhere."""
    settings = ReadSettings(name_servers="127.0.0.1:1", access_key="user", secret_key="s3cret", token="t0ken")

    assert "user" in repr(settings)
    assert "s3cret" not in repr(settings) and "t0ken" not in repr(settings)


def test_unusable_certificates_are_named() -> None:
    """The error names the file, before any request is made."""
    settings = ReadSettings(name_servers="127.0.0.1:1", sidecar_tls=TlsFiles(ca="/nowhere/ca.pem"))

    with pytest.raises(InvalidOption, match=r"/nowhere/ca\.pem"):
        Sidecar("https://127.0.0.1:1", settings)
