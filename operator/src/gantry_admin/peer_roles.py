"""What the other brokers of a shard say of their roles at this moment, asked through their sidecars.

``Peers`` knows what they said a second ago, for people. Here it is about whether somebody has promised something since,
so everybody is asked now, all at once, and whoever does not answer in time has said nothing. An answer is somebody
else's data: one that is no status, or of another shard, is none.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

import msgspec

from gantry_admin.peers import Peers
from gantry_spec.observed import Report
from gantry_spec.regaining import numbered
from gantry_status.broker_state import view_of
from gantry_status.orders import HaStatus

ASK_TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1 << 20
PATH: Final = "/v1/role/now?timeout_ms=1000"


@final
class PeerRoles:
    """Owned by the event loop."""

    def __init__(self, peers: Peers) -> None:
        self._peers: Final = peers

    def __repr__(self) -> str:
        return f"<PeerRoles {self._peers!r}>"

    async def now(self, own: HaStatus) -> dict[int, Report]:
        """By their numbers: those of the shard of ``own`` that have answered."""
        answers = await asyncio.gather(*(self._ask(url) for url in self._peers.words))
        others = [word for word in answers if word is not None and _is_other(word, own)]
        return numbered([view_of(word, Report, asked_ms=0, answered_ms=0) for word in others])

    async def _ask(self, url: str) -> HaStatus | None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                status, body = await self._peers.ask(url, PATH, ANSWER_BYTES_MAX)
            return msgspec.json.decode(body, type=HaStatus) if status == 200 else None
        except (OSError, ValueError, EOFError, TimeoutError):
            return None


def _is_other(word: HaStatus, own: HaStatus) -> bool:
    """Whether it is another broker of the same shard."""
    is_shard = (word.cluster, word.broker_name) == (own.cluster, own.broker_name)
    return is_shard and word.broker_id != own.broker_id and word.identity != own.identity
