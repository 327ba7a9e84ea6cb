"""Questions about another shard, passed on to one of its sidecars: so that the console of one speaks for the group.

Whoever asks names a shard, never an address; only `--peer` sidecars are asked, with the token that is shown to peers,
and only for what this caller may ask here, too. They are asked without the shard, so nothing goes round in circles.
What comes back is data from somebody else: it is validated as the document that it should be, or thrown away.
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
ANSWER_BYTES_MAX: Final = 16 << 20
PASSED_ON: Final = frozenset({400, 404, 410, 416, 429, 503, 504})
"""Refusals that are about the question; any other is the peer's trouble with us."""

D = TypeVar("D", bound=Document)

Shard = Annotated[
    str | None,
    Query(
        max_length=255, pattern=r"^[%|a-zA-Z0-9._-]+$",
        description="A broker name: ask a sidecar of that shard, which must be a --peer. By default this one answers.",
    ),
]  # fmt: skip


async def elsewhere(request: Request, sidecar: Sidecar, shard: str | None, kind: type[D]) -> D | None:
    """The answer of another shard; None where the question is ours. Raises ``Problem``."""
    reading = sidecar.broker.reading
    if shard is None or (reading is not None and reading.origin.broker_name == shard):
        return None
    url = sidecar.peers.of_shard(shard)
    if url is None:
        raise Problem(404, "no sidecar of that shard answers here")
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
        raise Problem(502, "the sidecar of that shard answered with something else") from error
    except (OSError, ValueError) as error:
        raise Problem(502, f"the sidecar of that shard: {error}"[:300]) from error
    raise Problem(status if status in PASSED_ON else 502, _reason(body) or f"the sidecar of that shard said {status}")


def _reason(body: bytes) -> str:
    """Why the peer refuses, in its own words."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    reason = document.get("reason") if isinstance(document, dict) else None
    return reason[:500] if isinstance(reason, str) else ""
