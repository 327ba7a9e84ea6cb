"""The relay of requests about another shard to one of its sidecars, so that one console shows the whole group.

A caller names a shard, never an address. Only `--peer` sidecars are asked, with the token for peers, and only for data
that the caller may read here too. The relayed request has no `shard` parameter, so it is never relayed again. Answers
are untrusted: an answer is validated as the expected document, or discarded.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request
from pydantic import ValidationError

from gantry_admin.documents import Document
from gantry_admin.errors import Problem

if TYPE_CHECKING:
    from gantry_admin.sidecar import Sidecar

TIMEOUT_S: Final = 4.0
"""How long a sidecar of another shard may take to answer."""

ANSWER_BYTES_MAX: Final = 16 << 20
RELAYED_STATUSES: Final = frozenset({400, 404, 410, 416, 429, 503, 504})
"""Error statuses about the request itself, which are passed on; any other concerns the relay and becomes 502."""

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
    reading = sidecar.broker.reading
    if shard is None or (reading is not None and reading.origin.broker_name == shard):
        return None
    url = sidecar.peers.url_of_shard(shard)
    if url is None:
        raise Problem(404, "no peer sidecar of that shard is reachable")
    query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "shard"])
    raw_path = request.scope["raw_path"].decode("ascii")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status, body = await sidecar.peers.ask(url, f"{raw_path}?{query}", ANSWER_BYTES_MAX)
        if status == 200:
            return kind.model_validate_json(body)
    except TimeoutError as error:
        raise Problem(504, "the sidecar of that shard did not answer in time") from error
    except ValidationError as error:
        raise Problem(502, "the sidecar of that shard sent an invalid answer") from error
    except (OSError, ValueError) as error:
        raise Problem(502, f"the sidecar of that shard: {error}"[:300]) from error
    raise Problem(
        status if status in RELAYED_STATUSES else 502, _reason(body) or f"the sidecar of that shard answered {status}"
    )


def _reason(body: bytes) -> str:
    """Return the reason in a peer's error answer; empty if it has none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    reason = document.get("reason") if isinstance(document, dict) else None
    return reason[:500] if isinstance(reason, str) else ""
