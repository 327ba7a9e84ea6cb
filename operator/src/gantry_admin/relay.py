"""The relay of requests about another shard to one of its sidecars, so that one console shows the whole group.

A caller names a shard, never an address. Only `--peer` sidecars are asked, with the token for peers, and only for data
that the caller may read here too. The relayed request has no `shard` parameter, so it is never relayed again. Answers
are untrusted: an answer is validated as the expected document, or discarded.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request
from pydantic import ValidationError

from gantry_admin.documents import Document
from gantry_admin.errors import Problem
from gantry_admin.http_request import BadAnswer, OpenAnswer

if TYPE_CHECKING:
    from gantry_admin.sidecar import Sidecar

TIMEOUT_S: Final = 4.0
"""How long a sidecar of another shard may take to answer."""

ANSWER_BYTES_MAX: Final = 16 << 20
RELAYED_STATUSES: Final = frozenset({400, 404, 410, 416, 429, 503, 504})
"""Error statuses about the request itself, which are passed on; any other concerns the relay and becomes 502."""

EVENT_BYTES_MAX: Final = 2 << 20
"""The longest event of a relayed stream: a message with the longest body that is shown, and its properties."""

_EVENT_ID: Final = re.compile(rb"[0-9:,]{0,8192}")
"""The ids of events: positions of queues, or none."""

D = TypeVar("D", bound=Document)

SHARD_PATTERN: Final = r"^[%|a-zA-Z0-9._-]+$"
"""The names that a broker may have in a parameter."""

Shard = Annotated[
    str | None,
    Query(
        max_length=255, pattern=SHARD_PATTERN,
        description="A broker name: ask a sidecar of that shard, which must be a --peer. By default this one answers.",
    ),
]  # fmt: skip


async def relay_to_shard(request: Request, sidecar: Sidecar, shard: str | None, kind: type[D]) -> D | None:
    """Return the answer of another shard's sidecar; None if the request is for this broker. Raises ``Problem``."""
    url = _peer_url(sidecar, shard)
    if url is None:
        return None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status, body = await sidecar.peers.ask(url, _relayed_path(request), ANSWER_BYTES_MAX)
        if status == 200:
            return kind.model_validate_json(body)
    except TimeoutError as error:
        raise Problem(504, "the sidecar of that shard did not answer in time") from error
    except ValidationError as error:
        raise Problem(502, "the sidecar of that shard sent an invalid answer") from error
    except (OSError, ValueError) as error:
        raise Problem(502, f"the sidecar of that shard: {error}"[:300]) from error
    raise _refusal(status, body)


def _peer_url(sidecar: Sidecar, shard: str | None) -> str | None:
    """Return the URL of a sidecar of another shard; None if the request is for this broker. Raises ``Problem`` 404."""
    reading = sidecar.broker.reading
    if shard is None or (reading is not None and reading.origin.broker_name == shard):
        return None
    url = sidecar.peers.url_of_shard(shard)
    if url is None:
        raise Problem(404, "no peer sidecar of that shard is reachable")
    return url


def _relayed_path(request: Request) -> str:
    """Return the path of a relayed request, without the shard, so that it is never relayed again."""
    query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "shard"])
    return f"{request.scope['raw_path'].decode('ascii')}?{query}"


def _refusal(status: int, body: bytes) -> Problem:
    """Return the problem for an error answer of a peer."""
    known = status if status in RELAYED_STATUSES else 502
    return Problem(known, _reason(body) or f"the sidecar of that shard answered {status}")


async def relay_stream_to_shard(
    request: Request, sidecar: Sidecar, shard: str | None, kinds: Mapping[str, type[Document]]
) -> AsyncGenerator[bytes, None] | None:
    """Return the events of another shard's sidecar; None if the request is for this broker. Raises ``Problem``.

    ``kinds`` has the documents of the expected events. The stream ends with the peer's, or at an invalid event.
    """
    url = _peer_url(sidecar, shard)
    if url is None:
        return None
    last_id = request.headers.get("last-event-id")
    stream = _relayed_events(
        sidecar, url, _relayed_path(request), {} if last_id is None else {"Last-Event-ID": last_id}, kinds
    )
    sidecar.streams.check()
    try:
        # The first part, which is empty, arrives after the head of the answer: an error is answered as such.
        async with asyncio.timeout(TIMEOUT_S):
            await anext(stream)
    except TimeoutError as error:
        await stream.aclose()
        raise Problem(504, "the sidecar of that shard did not answer in time") from error
    except (OSError, BadAnswer, StopAsyncIteration) as error:
        raise Problem(502, f"the sidecar of that shard: {error}"[:300]) from error
    return stream


async def _relayed_events(
    sidecar: Sidecar, url: str, path: str, headers: Mapping[str, str], kinds: Mapping[str, type[Document]]
) -> AsyncGenerator[bytes, None]:
    """Yield nothing when the head of a good answer has arrived, then its valid events. Raises ``Problem``."""
    with sidecar.streams.hold():
        async with sidecar.peers.open_stream(url, path, headers) as answer:
            if answer.status != 200:
                raise _refusal(answer.status, await answer.read(EVENT_BYTES_MAX))
            yield b""
            with suppress(OSError, BadAnswer):  # the peer has ended the stream; the client sees its end
                async for block in _blocks(answer):
                    event = validated_event(block, kinds)
                    if event is None:
                        return
                    yield event


async def _blocks(answer: OpenAnswer) -> AsyncIterator[bytes]:
    """Yield the blocks of a stream until its end, or until one is too long."""
    waiting = b""
    async for piece in answer.pieces():
        *blocks, waiting = (waiting + piece).split(b"\n\n")
        for block in blocks:
            yield block
        if len(waiting) > EVENT_BYTES_MAX:
            return


def validated_event(block: bytes, kinds: Mapping[str, type[Document]]) -> bytes | None:
    """Return an event of a peer, made again from its validated parts; None for an invalid one."""
    if block.startswith(b":"):
        return b": still here\n\n"
    fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n"))
    name = fields.get(b"event", b"").decode("ascii", "replace")
    kind, id = kinds.get(name), fields.get(b"id", b"")
    if kind is None or _EVENT_ID.fullmatch(id) is None:
        return None
    try:
        document = kind.model_validate_json(fields.get(b"data", b""))
    except ValidationError:
        return None
    head = b"id: " + id + b"\n" if id else b""
    return head + f"event: {name}\ndata: {document.model_dump_json()}\n\n".encode()


def _reason(body: bytes) -> str:
    """Return the reason in a peer's error answer; empty if it has none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    reason = document.get("reason") if isinstance(document, dict) else None
    return reason[:500] if isinstance(reason, str) else ""
