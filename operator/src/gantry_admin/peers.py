"""The other sidecars of the group: asked once a second in the background, answered from memory.

Their addresses come from the command line, so nobody who asks can have this process connect anywhere. An answer is
bounded in size and time, and what it holds is data from another process: it is validated as a status or thrown away.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import SplitResult, urlsplit

import msgspec
from pydantic import ValidationError

from gantry_admin.documents import StatusDocument
from gantry_admin.errors import SettingsError
from gantry_admin.http_request import BadAnswer, http_request
from gantry_admin.settings import PeerSettings
from gantry_remoting.settings import ClientTlsSettings
from gantry_spec.observed import Report
from gantry_spec.regaining import numbered
from gantry_status.broker_state import view_of
from gantry_status.orders import HaStatus

ASK_INTERVAL_S: Final = 1.0
ASK_TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 1 << 20
ROLE_PATH: Final = "/v1/role/now?timeout_ms=1000"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWord:
    """What a peer said last."""

    url: str
    status: StatusDocument | None = None
    at_monotonic_s: float | None = None
    fault: str | None = "it was not asked yet"

    def age_ms(self) -> int | None:
        return None if self.at_monotonic_s is None else int((time.monotonic() - self.at_monotonic_s) * 1000)


@final
class Peers:
    """Owned by the event loop."""

    def __init__(self, settings: PeerSettings, token: Callable[[], str]) -> None:
        """``token`` says what is shown now. Raises ``SettingsError`` for an authority that cannot be used."""
        self._token: Final = token
        self._certificates: Final = ClientTlsSettings(
            authority_file=None if settings.ca is None else str(settings.ca),
            is_host_name_checked=settings.verify == "full",
            names=("--peer-ca", "", ""),
        ).source("peers")
        try:
            self._certificates.load()
        except OSError as error:
            raise SettingsError(str(error)) from error
        self.words: dict[str, PeerWord] = {url: PeerWord(url=url) for url in settings.urls}

    def __repr__(self) -> str:
        return f"<Peers {', '.join(self.words)}>"

    async def run(self) -> None:
        """Ask everybody again and again, until cancelled."""
        while self.words:
            context = await self._certificates.fresh()
            await asyncio.gather(*(self._ask(url, context) for url in self.words))
            await asyncio.sleep(ASK_INTERVAL_S)

    async def _ask(self, url: str, context: ssl.SSLContext) -> None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                body = await self._get(urlsplit(url), "/v1/status", context)
            status = StatusDocument.model_validate_json(body)
        except TimeoutError:
            fault = f"no answer within {ASK_TIMEOUT_S:g} s"
        except ValidationError:
            fault = "it answered with something that is no status"
        except (OSError, ValueError) as error:
            fault = str(error) or type(error).__name__
        else:
            self.words[url] = PeerWord(url=url, status=status, at_monotonic_s=time.monotonic(), fault=None)
            return
        old = self.words[url]
        self.words[url] = PeerWord(url=url, status=old.status, at_monotonic_s=old.at_monotonic_s, fault=fault[:300])

    def of_shard(self, broker_name: str) -> str | None:
        """Whom to ask about a shard: its master's sidecar if that answers, else any that does."""
        found = [
            (word.status.role == "master", word.url) for word in self.words.values()
            if word.fault is None and word.status is not None and word.status.broker_name == broker_name
        ]  # fmt: skip
        return max(found)[1] if found else None

    async def ask(self, url: str, path: str, bytes_max: int) -> tuple[int, bytes]:
        """What a peer answers to somebody's question: status and body. Raises OSError or ValueError."""
        assert url in self.words, "only peers are asked, and nobody who asks can name another"
        context = await self._certificates.fresh()
        return await self._fetch(urlsplit(url), path, context, bytes_max)

    async def _get(self, url: SplitResult, path: str, context: ssl.SSLContext) -> bytes:
        """The body of a 200. Raises OSError or ValueError for anything else."""
        status, body = await self._fetch(url, path, context, ANSWER_BYTES_MAX)
        if status != 200:
            raise ValueError(f"it answered {status}")
        return body

    async def _fetch(self, url: SplitResult, path: str, context: ssl.SSLContext, bytes_max: int) -> tuple[int, bytes]:
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            return await http_request(
                url, "GET", f"{url.path.rstrip('/')}{path}", headers, b"", context, bytes_max=bytes_max
            )
        except BadAnswer as error:
            raise ValueError(str(error)) from error


@final
class PeerRoles:
    """What the other brokers of a shard report about their roles at this moment. Owned by the event loop.

    ``Peers`` knows what they reported a second ago, for people. Here it is about whether one of them has promised
    something since, so all are asked now, at once, and one that does not answer in time has not answered. An answer is
    another process's data: one that is no status, or of another shard, is none.
    """

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
                status, body = await self._peers.ask(url, ROLE_PATH, ANSWER_BYTES_MAX)
            return msgspec.json.decode(body, type=HaStatus) if status == 200 else None
        except (OSError, ValueError):
            return None


def _is_other(word: HaStatus, own: HaStatus) -> bool:
    """Whether it is another broker of the same shard."""
    is_shard = (word.cluster, word.broker_name) == (own.cluster, own.broker_name)
    return is_shard and word.broker_id != own.broker_id and word.identity != own.identity
