"""One sidecar over HTTP/1.1, and the list of known sidecars.

Connections are kept and shared by the threads that read ahead. A range is read directly into the memory in which it is
decoded. For reads, the meaning of an HTTP status is decided here, and only here; an audit has rules of its own:

    401, 403: Refused               404: NoSuchQueue         410: RangeDeleted
    416: NotYetAvailable            429: retried later       else: Unreachable

`412` means that a new epoch has begun since the reader opened the log; it raises Unreachable, and the reader opens the
log again.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, final
from urllib.parse import urlsplit

import numpy as np

from pyspark_rocketmq.errors import InvalidOption, Refused
from pyspark_rocketmq.replica_view import Bytes, NotYetAvailable, RangeDeleted, Unreachable, ViewError
from pyspark_rocketmq.settings import ReadSettings

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a response that is not a range of the log, at most."""
RETRY_S_MAX: Final = 5.0
"""The longest pause that a busy sidecar can request."""
IDLE_MAX: Final = 8
"""Connections that are kept while they are not in use."""


@final
class NoSuchQueue(ViewError):
    """404: the sidecar's store has no files of the queue, since it has no message yet.

    For any other path, the server at this address is no sidecar of Gantry's.
    """


class Answer(NamedTuple):
    """A response of a sidecar."""

    status: int
    headers: Mapping[str, str]
    """The headers, with lower-case names."""
    body: bytes


@final
class Sidecar:
    """One sidecar process. Any thread may call it."""

    def __init__(self, url: str, settings: ReadSettings) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidOption(f"sidecars: {url!r} is not a base URL such as http://127.0.0.1:8080")
        self.url: Final = url.rstrip("/")
        self._host: Final = parts.hostname
        self._port: Final = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix: Final = parts.path.rstrip("/")
        self._timeout_s: Final = settings.request_timeout_ms / 1000
        self._headers: Final = {} if settings.token is None else {"Authorization": f"Bearer {settings.token}"}
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._context = settings.sidecar_tls.client_context()
        self._idle: dict[int, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Sidecar {self.url}>"

    def document(self, path: str) -> dict[str, Any]:
        """Return the JSON object in a response. Raises by status."""
        answer = self.get(path)
        try:
            found = json.loads(answer.body)
        except ValueError as error:
            raise Unreachable(f"{self.url}{path} returned invalid JSON") from error
        if not isinstance(found, dict):
            raise Unreachable(f"{self.url}{path} returned JSON that is not an object")
        return found

    def get(self, path: str) -> Answer:
        """Return a whole response with status 200. Raises by status."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._exchange(self._port, path, {}, None)
            if answer.status == 200:
                return answer
            self._pause_or_raise(answer, path, deadline)

    def exchange(self, path: str, headers: Mapping[str, str], port: int | None = None) -> Answer:
        """Return one response of any status. Raises Unreachable without one."""
        return self._exchange(port or self._port, path, headers, None)

    def log_bytes(self, begin: int, end: int, *, etag: str, fast_port: int | None) -> Bytes:
        """Return all bytes `[begin, end)` of the log. Raises by status; Unreachable after a new epoch."""
        data = np.empty(end - begin, np.uint8)
        view = data.data
        position, deadline = begin, time.monotonic() + self._timeout_s
        while position < end:
            headers = {"Range": f"bytes={position}-{end - 1}", "If-Match": etag}
            try:
                answer = self._exchange(fast_port or self._port, "/v1/log/bytes", headers, view[position - begin :])
            except Unreachable:
                if fast_port is None:
                    raise
                fast_port = None  # a firewall may block the port of the log listener only
                continue
            if answer.status == 206:
                position += int(answer.headers["content-length"])
                deadline = time.monotonic() + self._timeout_s
            else:
                self._pause_or_raise(answer, f"/v1/log/bytes [{position}, {end})", deadline)
        return data

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are released."""
        with self._lock:
            self._is_closed = True
            connections = [one for idle in self._idle.values() for one in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    # -- one exchange --------------------------------------------------------------------------------------------------

    def _exchange(self, port: int, path: str, headers: Mapping[str, str], into: memoryview | None) -> Answer:
        """Make one request and return its response.

        If a kept connection turns out to be closed, the request is repeated on a new one.
        """
        while True:
            connection, is_kept = self._acquire(port)
            try:
                return self._send_request(connection, port, path, headers, into)
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                if is_kept and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                    continue
                what = f"{type(error).__name__}: {error}".rstrip(": ")
                raise Unreachable(f"{self.url} (port {port}) did not answer {path}: {what}") from error

    def _send_request(
        self,
        connection: http.client.HTTPConnection,
        port: int,
        path: str,
        headers: Mapping[str, str],
        into: memoryview | None,
    ) -> Answer:
        connection.request("GET", self._prefix + path, headers={**self._headers, **headers})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        if response.status == 206 and into is not None:
            count = int(found["content-length"])
            if not 0 < count <= len(into):
                raise http.client.HTTPException(f"the response has {count} bytes, but {len(into)} were requested")
            _read_into(response, into[:count])
            body = b""
        else:
            body = response.read(ANSWER_BYTES_MAX + 1)
            if len(body) > ANSWER_BYTES_MAX:
                raise http.client.HTTPException("the response is too long")
            if len(body) != int(found.get("content-length", len(body))):
                raise http.client.IncompleteRead(body)
        if response.will_close:
            connection.close()
        else:
            self._release(port, connection)
        return Answer(response.status, found, body)

    def _acquire(self, port: int) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            idle = self._idle.get(port)
            if idle:
                return idle.pop(), True
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, port, timeout=self._timeout_s, context=self._context), False
        return http.client.HTTPConnection(self._host, port, timeout=self._timeout_s), False

    def _release(self, port: int, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(port, [])
            if not self._is_closed and len(idle) < IDLE_MAX:
                idle.append(connection)
                return
        connection.close()

    def _pause_or_raise(self, answer: Answer, path: str, deadline: float) -> None:
        """Wait if the sidecar is only busy (429); otherwise raise the error that the status means."""
        text = f"{self.url}{path}: {answer.status} {reason_of(answer.body)}"
        match answer.status:
            case 401 | 403:
                raise Refused(f"{text}; check the token and the certificates")
            case 404:
                raise NoSuchQueue(text)
            case 410:
                raise RangeDeleted(text)
            case 416:
                raise NotYetAvailable(text)
            case 429 if time.monotonic() < deadline:
                seconds = 0.2
                with suppress(ValueError):
                    seconds = float(answer.headers.get("retry-after", seconds))
                time.sleep(min(max(seconds, 0.05), RETRY_S_MAX))
            case _:
                raise Unreachable(text)


def _read_into(response: http.client.HTTPResponse, view: memoryview) -> None:
    position = 0
    while position < len(view):
        count = response.readinto(view[position:])
        if not count:
            raise http.client.HTTPException(f"the response ended after {position} of {len(view)} bytes")
        position += count
    response.read()


def reason_of(body: bytes) -> str:
    """Return the reason for a refusal, from the body of the response."""
    try:
        return str(json.loads(body)["reason"])[:500]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


@final
class Sidecars:
    """The sidecars that the settings name, and those that they list. One thread at a time."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._known: dict[str, Sidecar] = {}

    def __repr__(self) -> str:
        return f"<Sidecars {sorted(self._known)}>"

    def at(self, url: str) -> Sidecar:
        """Return the sidecar at a base URL, which is kept."""
        found = self._known.get(url)
        if found is None:
            found = self._known[url] = Sidecar(url, self._settings)
        return found

    def members(self) -> dict[str, dict[str, Any]]:
        """Return the status of each sidecar's broker by URL, those of the settings first.

        Raises an error if no sidecar of the settings answers.
        """
        own: dict[str, dict[str, Any]] = {}
        peers: dict[str, dict[str, Any]] = {}
        faults: list[Unreachable | Refused] = []
        for url in self._settings.sidecars:
            try:
                members = self.at(url).document("/v1/group").get("members", [])
            except NoSuchQueue as error:
                faults.append(Unreachable(f"{error}: this is not a Gantry sidecar"))
                continue
            except (Unreachable, Refused) as error:
                faults.append(error)
                continue
            for member in members:
                if member.get("status"):
                    (own if member.get("is_self") else peers)[url if member.get("is_self") else member["url"]] = member[
                        "status"
                    ]
        if faults and not own:
            raise faults[0]
        return own | {url: status for url, status in peers.items() if url not in own}

    def close(self) -> None:
        """Close all connections of this object."""
        for one in self._known.values():
            one.close()
        self._known.clear()
