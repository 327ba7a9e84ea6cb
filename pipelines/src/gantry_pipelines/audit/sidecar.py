"""A copy of a log that a sidecar answers for: checksums, ranges and units by HTTP.

What a sidecar says can be read ends at min(confirmed, committed). A range below that which it cannot read is what an
audit looks for: it is halved until the unreadable pieces are small, and these are holes. A sidecar that does not
answer, on the other hand, is asked again for a while, and then the audit could not be done. Ranges that retention has
taken meanwhile are `Expired`, and no finding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final, final
from urllib.parse import quote, urlencode

from gantry_pipelines.audit.copies import Algorithm, Bytes, CopyState, joined, steps, summed
from gantry_pipelines.audit.errors import CopyUnreachable, Expired
from gantry_pipelines.audit.model import Span
from gantry_pipelines.audit.settings import SidecarAccess
from gantry_store_files import UNIT_BYTES
from gantry_wire.names import looks_internal
from pyspark_rocketmq.replica_view import Unreachable
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.sidecar import ANSWER_BYTES_MAX, Answer, Sidecar, reason_of

PIECE_BYTES_MIN: Final = 64 << 10
UNITS_MAX: Final = 1 << 16
TOPICS_MAX: Final = 1_000
TIMEOUT_MS: Final = 60_000
PAUSE_S: Final = 0.5
_BUSY: Final = frozenset({429, 502, 504})


@final
class SidecarCopy:
    """See the module."""

    def __init__(self, url: str, access: SidecarAccess) -> None:
        self._url: Final = url.rstrip("/")
        self._patience_s: Final = access.patience_ms / 1000
        settings = ReadSettings(
            name_servers="-",  # none is asked
            token=access.token_for(self._url) or None,
            sidecar_tls=access.tls,
            request_timeout_ms=TIMEOUT_MS,
        )
        self._sidecar: Final = Sidecar(url, settings)
        self._log: dict[str, Any] = {}
        self._known: tuple[dict[str, dict[str, Any]], bool] | None = None

    def __repr__(self) -> str:
        return f"<SidecarCopy {self._url}>"

    def close(self) -> None:
        """Close the connections."""
        self._sidecar.close()

    # -- what it says --------------------------------------------------------------------------------------------------

    def state(self) -> CopyState:
        """From `/v1/log`. Who wrote what of the log it does not say: seals are believed where they are right."""
        self._log = self._document("/v1/log")
        return CopyState(Span(int(self._log["begin"]), int(self._log["end"])), is_live=True)

    def _range_max(self) -> int:
        if not self._log:
            self.state()
        return min(int(self._log["range_bytes_max"]), ANSWER_BYTES_MAX)

    # -- the log -------------------------------------------------------------------------------------------------------

    def checksum(self, begin: int, end: int, algorithm: Algorithm) -> str | None:
        """Step by step, as every copy does it."""
        texts: list[str] = []
        for low, high in steps(begin, end):
            if self._range_max() < high - low:
                data = self.read(low, high)
                if data.holes:
                    return None
                texts.append(summed(data.data, algorithm))
                continue
            query = {"offset": low, "length": high - low, "algorithm": algorithm}
            answer = self._get("/v1/log/checksum", query)
            if answer.status == 503 and self._stands():
                return None
            document = self._json(answer)
            if int(document["length"]) < high - low:
                raise CopyUnreachable(f"the log at {self._url} has become shorter than it was: start the audit again")
            texts.append(str(document["checksum"]))
        return " ".join(texts)

    def read(self, begin: int, end: int) -> Bytes:
        """From the listener that sends files, if there is one."""
        data = bytearray(end - begin)
        holes: list[Span] = []
        self._read_into(data, begin, begin, end, holes)
        return Bytes(begin, bytes(data), joined(holes))

    def _read_into(self, data: bytearray, base: int, begin: int, end: int, holes: list[Span]) -> None:
        while begin < end:
            stop = min(begin + self._range_max(), end)
            answer = self._get("/v1/log/bytes", {}, {"Range": f"bytes={begin}-{stop - 1}"}, self._log.get("fast_port"))
            if answer.status == 206 and answer.body:
                data[begin - base : begin - base + len(answer.body)] = answer.body
                begin += len(answer.body)
                continue
            if answer.status != 503 or not self._stands():
                self._json(answer)  # says why
            if stop - begin <= PIECE_BYTES_MIN:
                holes.append(Span(begin, stop))
            else:
                middle = begin + (stop - begin) // 2
                self._read_into(data, base, begin, middle, holes)
                self._read_into(data, base, middle, stop, holes)
            begin = stop

    def _stands(self) -> bool:
        """Whether the sidecar can say what its log is, and so a range that it cannot read is not there."""
        answer = self._get("/v1/log", {})
        return answer.status == 200

    # -- queues --------------------------------------------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """Users' topics, as far as the sidecar names them; queues of RocketMQ's own are known from the log only."""
        return sorted(
            (name, int(queue["queue_id"])) for name, topic in self._topics()[0].items() for queue in topic["queues"]
        )

    def knows_topic(self, topic: str) -> bool | None:
        """Of RocketMQ's own topics, and where there are too many, the sidecar says nothing."""
        topics, is_all = self._topics()
        if topic in topics:
            return True
        return False if is_all and not looks_internal(topic) else None

    def _topics(self) -> tuple[dict[str, dict[str, Any]], bool]:
        """By name, and whether these are all; asked once."""
        if self._known is None:
            answer = self._get("/v1/topics", {"limit": TOPICS_MAX})
            document: dict[str, Any] = {"topics": [], "left_out": 1}
            if answer.status == 200:
                document = json.loads(answer.body)
            found = {str(topic["name"]): topic for topic in document["topics"]}
            self._known = found, not document["left_out"]
        return self._known

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        """What the sidecar shows: up to the last unit whose message can be read."""
        answer = self._get(_path(topic, queue), {})
        if answer.status == 404:
            return 0, 0
        document = self._json(answer)
        return int(document["begin"]), int(document["end"])

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """Zeros for those that the sidecar does not show."""
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
                self._json(answer)
            if not answer.body:
                break
            result[(at - first) * UNIT_BYTES : (at - first) * UNIT_BYTES + len(answer.body)] = answer.body
            at += len(answer.body) // UNIT_BYTES
        return bytes(result[: count * UNIT_BYTES])

    # -- asking --------------------------------------------------------------------------------------------------------

    def _document(self, path: str) -> dict[str, Any]:
        deadline = time.monotonic() + self._patience_s
        while True:
            answer = self._get(path, {})
            if answer.status != 503 or time.monotonic() >= deadline:
                return self._json(answer)
            time.sleep(PAUSE_S)

    def _get(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None, port: int | None = None
    ) -> Answer:
        """One answer, of whatever status; asked again while nobody answers or there are too many readers."""
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
                    raise CopyUnreachable(f"the sidecar does not answer: {error}") from error
                wait = PAUSE_S
            time.sleep(min(wait, 5.0))

    def _json(self, answer: Answer) -> dict[str, Any]:
        """The document of an answer that is one; else what to do about it."""
        if answer.status in (200, 206):
            document: dict[str, Any] = json.loads(answer.body)
            return document
        reason = reason_of(answer.body)
        if answer.status == 410:
            raise Expired(f"{self._url}: {reason}")
        raise CopyUnreachable(f"the sidecar at {self._url} answers {answer.status}: {reason}")


def _path(topic: str, queue: int) -> str:
    return f"/v1/log/queues/{quote(topic, safe='')}/{queue}"
