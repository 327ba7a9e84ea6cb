"""A copy of a log behind a sidecar: checksums, ranges and units over HTTP.

The end that a sidecar reports is min(confirmed, committed). If it cannot read a range before that, the range is halved
until the unreadable pieces are small; these are holes. Requests to an unavailable sidecar are retried for a while, and
then the audit fails. Ranges that retention has deleted meanwhile raise `Expired`, and are no finding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final, final
from urllib.parse import quote, urlencode

from gantry_pipelines.audit.copies import Algorithm, Bytes, CopyState, checksum_steps, checksum_text, merge_spans
from gantry_pipelines.audit.errors import CopyUnreachable, Expired
from gantry_pipelines.audit.model import Span
from gantry_pipelines.audit.settings import SidecarAccess
from gantry_store_files import UNIT_BYTES
from gantry_wire.names import is_probably_internal
from pyspark_rocketmq.replica_view import Unreachable
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.sidecar import ANSWER_BYTES_MAX, Answer, Sidecar, reason_of

PIECE_BYTES_MIN: Final = 64 << 10
"""The size from which an unreadable range is not halved any more."""

UNITS_MAX: Final = 1 << 16
"""The most units that a sidecar returns in one answer."""

TOPICS_MAX: Final = 1_000
"""The most topics that a sidecar returns in one answer."""

TIMEOUT_MS: Final = 60_000
PAUSE_S: Final = 0.5
"""The time between two attempts of a request, in seconds."""

_BUSY: Final = frozenset({429, 502, 504})
"""The HTTP statuses after which a request is repeated."""


@final
class SidecarCopy:
    """The copy of one replica behind its sidecar; see the module's docstring."""

    def __init__(self, url: str, access: SidecarAccess) -> None:
        self._url: Final = url.rstrip("/")
        self._patience_s: Final = access.patience_ms / 1000
        settings = ReadSettings(
            name_servers="-",  # required, but not used here
            token=access.token_for(self._url) or None,
            sidecar_tls=access.tls,
            request_timeout_ms=TIMEOUT_MS,
        )
        self._sidecar: Final = Sidecar(url, settings)
        self._log: dict[str, Any] = {}
        self._known_topics: tuple[dict[str, dict[str, Any]], bool] | None = None

    def __repr__(self) -> str:
        return f"<SidecarCopy {self._url}>"

    def close(self) -> None:
        """Close the connections to the sidecar."""
        self._sidecar.close()

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> CopyState:
        """Return the state from `/v1/log`.

        Its epochs do not state which of them Gantry has written, so where seals are required is unknown.
        """
        self._log = self._wait_for_document("/v1/log")
        return CopyState(Span(int(self._log["begin"]), int(self._log["end"])), is_live=True)

    def _range_max(self) -> int:
        if not self._log:
            self.state()
        return min(int(self._log["range_bytes_max"]), ANSWER_BYTES_MAX)

    # -- the log -------------------------------------------------------------------------------------------------------

    def checksum(self, begin: int, end: int, algorithm: Algorithm) -> str | None:
        """Return the checksum of a range, in the same steps as every copy; None if it cannot all be read."""
        texts: list[str] = []
        for low, high in checksum_steps(begin, end):
            if self._range_max() < high - low:
                data = self.read(low, high)
                if data.holes:
                    return None
                texts.append(checksum_text(data.data, algorithm))
                continue
            query = {"offset": low, "length": high - low, "algorithm": algorithm}
            answer = self._get("/v1/log/checksum", query)
            if answer.status == 503 and self._is_log_readable():
                return None
            document = self._require_document(answer)
            if int(document["length"]) < high - low:
                raise CopyUnreachable(f"the log at {self._url} has become shorter: run the audit again")
            texts.append(str(document["checksum"]))
        return " ".join(texts)

    def read(self, begin: int, end: int) -> Bytes:
        """Read a range, from the sidecar's log listener (`fast_port`) if it has one."""
        data = bytearray(end - begin)
        holes: list[Span] = []
        self._read_into(data, begin, begin, end, holes)
        return Bytes(begin, bytes(data), merge_spans(holes))

    def _read_into(self, data: bytearray, base: int, begin: int, end: int, holes: list[Span]) -> None:
        """Read a range into ``data``, which begins at ``base``; add what cannot be read to ``holes``."""
        while begin < end:
            stop = min(begin + self._range_max(), end)
            answer = self._get("/v1/log/bytes", {}, {"Range": f"bytes={begin}-{stop - 1}"}, self._log.get("fast_port"))
            if answer.status == 206 and answer.body:
                data[begin - base : begin - base + len(answer.body)] = answer.body
                begin += len(answer.body)
                continue
            if answer.status != 503 or not self._is_log_readable():
                self._require_document(answer)  # raises with the reason
            if stop - begin <= PIECE_BYTES_MIN:
                holes.append(Span(begin, stop))
            else:
                middle = begin + (stop - begin) // 2
                self._read_into(data, base, begin, middle, holes)
                self._read_into(data, base, middle, stop, holes)
            begin = stop

    def _is_log_readable(self) -> bool:
        """Return whether the sidecar can read its log in general, so that an unreadable range is a hole."""
        answer = self._get("/v1/log", {})
        return answer.status == 200

    # -- queues --------------------------------------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """Return the queues of users' topics, as far as the sidecar lists them; it does not list system topics."""
        return sorted(
            (name, int(queue["queue_id"])) for name, topic in self._topics()[0].items() for queue in topic["queues"]
        )

    def knows_topic(self, topic: str) -> bool | None:
        """Return whether a topic exists; None for system topics, and if the sidecar has too many to list."""
        topics, is_all = self._topics()
        if topic in topics:
            return True
        return False if is_all and not is_probably_internal(topic) else None

    def _topics(self) -> tuple[dict[str, dict[str, Any]], bool]:
        """Return the topics by name, and whether the list is complete; requested once."""
        if self._known_topics is None:
            answer = self._get("/v1/topics", {"limit": TOPICS_MAX})
            document: dict[str, Any] = {"topics": [], "left_out": 1}
            if answer.status == 200:
                document = json.loads(answer.body)
            found = {str(topic["name"]): topic for topic in document["topics"]}
            self._known_topics = found, not document["left_out"]
        return self._known_topics

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the range of offsets that the sidecar reports, up to the last unit whose message is readable."""
        answer = self._get(_path(topic, queue), {})
        if answer.status == 404:
            return 0, 0
        document = self._require_document(answer)
        return int(document["begin"]), int(document["end"])

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """Read units, with zeros for those that the sidecar does not return."""
        result = bytearray(count * UNIT_BYTES)
        at = first
        while at < first + count:
            query = {"from": at, "count": min(UNITS_MAX, first + count - at)}
            answer = self._get(f"{_path(topic, queue)}/units", query)
            if answer.status in (404, 416):
                break
            if answer.status == 410:
                oldest = int(json.loads(answer.body).get("oldest") or 0)
                if oldest <= at:
                    break
                at = oldest
                continue
            if answer.status != 200:
                self._require_document(answer)
            if not answer.body:
                break
            result[(at - first) * UNIT_BYTES : (at - first) * UNIT_BYTES + len(answer.body)] = answer.body
            at += len(answer.body) // UNIT_BYTES
        return bytes(result[: count * UNIT_BYTES])

    # -- requests ------------------------------------------------------------------------------------------------------

    def _wait_for_document(self, path: str) -> dict[str, Any]:
        deadline = time.monotonic() + self._patience_s
        while True:
            answer = self._get(path, {})
            if answer.status != 503 or time.monotonic() >= deadline:
                return self._require_document(answer)
            time.sleep(PAUSE_S)

    def _get(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None, port: int | None = None
    ) -> Answer:
        """Return one answer of any status. Requests are retried while the sidecar is unavailable or busy."""
        deadline = time.monotonic() + self._patience_s
        target = f"{path}?{urlencode(query)}" if query else path
        while True:
            try:
                answer = self._sidecar.exchange(target, headers or {}, port)
                if answer.status not in _BUSY or time.monotonic() >= deadline:
                    return answer
                wait = float(answer.headers.get("retry-after", PAUSE_S))
            except Unreachable as error:
                if time.monotonic() >= deadline:
                    raise CopyUnreachable(f"the sidecar is unavailable: {error}") from error
                wait = PAUSE_S
            time.sleep(min(wait, 5.0))

    def _require_document(self, answer: Answer) -> dict[str, Any]:
        """Return the document of a successful answer; otherwise raise Expired or CopyUnreachable."""
        if answer.status in (200, 206):
            document: dict[str, Any] = json.loads(answer.body)
            return document
        reason = reason_of(answer.body)
        if answer.status == 410:
            raise Expired(f"{self._url}: {reason}")
        raise CopyUnreachable(f"the sidecar at {self._url} answered {answer.status}: {reason}")


def _path(topic: str, queue: int) -> str:
    return f"/v1/log/queues/{quote(topic, safe='')}/{queue}"
