"""The other sidecars of the group: their statuses, polled every second, and requests that are relayed to them.

Callers read the statuses from memory; only `Peers.ask` and `PeerRoles` send a request for a caller, who waits for it.

Their addresses come from the command line, so no caller can make this process connect to another address. An answer is
bounded in size and time, and it is untrusted: it is validated, or discarded.

This sidecar lets a peer measure its broker's rates only while one of its own clients reads the view of the group: the
requests of two sidecars alone would otherwise keep each other's brokers polled for ever.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import SplitResult, urlsplit

import msgspec
from pydantic import ValidationError

from gantry_admin.documents import StatusDocument
from gantry_admin.errors import SettingsError
from gantry_admin.http_request import BadAnswer, OpenAnswer, http_request, open_answer
from gantry_admin.settings import PeerSettings
from gantry_remoting.settings import ClientTlsSettings
from gantry_spec.observed import Report
from gantry_spec.role_recovery import reports_by_number
from gantry_status.broker_state import view_of
from gantry_status.orders import HaStatus, status_of

POLL_INTERVAL_S: Final = 1.0
"""The interval between two polls of all peers, in seconds."""

ASK_TIMEOUT_S: Final = 2.0
"""How long a peer may take to answer a poll."""

ANSWER_BYTES_MAX: Final = 1 << 20
STATUS_PATH: Final = "/v1/status"
STATUS_PATH_WITHOUT_RATES: Final = "/v1/status?rates=false"
ROLE_PATH: Final = "/v1/role/now?timeout_ms=1000"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReport:
    """The last status of a peer, and why there is no newer one."""

    url: str
    """The base URL of the peer."""

    status: StatusDocument | None = None
    """The last status; None before the first answer."""

    at_monotonic_s: float | None = None
    """When it arrived, by the monotonic clock."""

    fault: str | None = "not requested yet"
    """Why the last request failed; None if it succeeded."""

    def age_ms(self) -> int | None:
        return None if self.at_monotonic_s is None else int((time.monotonic() - self.at_monotonic_s) * 1000)


@final
class Peers:
    """The peers of one sidecar. Owned by the event loop."""

    def __init__(self, settings: PeerSettings, token: Callable[[], str]) -> None:
        """``token`` returns the token for requests. Raises ``SettingsError`` for an authority that cannot be used."""
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
        self._rates_until_s = -math.inf
        self.reports: dict[str, PeerReport] = {url: PeerReport(url=url) for url in settings.urls}

    def __repr__(self) -> str:
        return f"<Peers {', '.join(self.reports)}>"

    async def run(self) -> None:
        """Poll all peers again and again, until cancelled."""
        while self.reports:
            context = await self._certificates.load_current()
            await asyncio.gather(*(self._poll(url, context) for url in self.reports))
            await asyncio.sleep(POLL_INTERVAL_S)

    def request_rates(self, duration_s: float) -> None:
        """Have the peers measure their brokers' rates for this time, because a client reads them."""
        self._rates_until_s = time.monotonic() + duration_s

    async def _poll(self, url: str, context: ssl.SSLContext) -> None:
        path = STATUS_PATH if time.monotonic() < self._rates_until_s else STATUS_PATH_WITHOUT_RATES
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                body = await self._get(urlsplit(url), path, context)
            status = StatusDocument.model_validate_json(body)
        except TimeoutError:
            fault = f"no answer within {ASK_TIMEOUT_S:g} s"
        except ValidationError:
            fault = "its answer is not a valid status"
        except (OSError, ValueError) as error:
            fault = str(error) or type(error).__name__
        else:
            self.reports[url] = PeerReport(url=url, status=status, at_monotonic_s=time.monotonic(), fault=None)
            return
        old = self.reports[url]
        self.reports[url] = PeerReport(url=url, status=old.status, at_monotonic_s=old.at_monotonic_s, fault=fault[:300])

    def url_of_shard(self, broker_name: str) -> str | None:
        """Return the URL to ask about a shard: its master's sidecar if reachable, else any other; None without one."""
        found = [
            (peer.status.role == "master", peer.url) for peer in self.reports.values()
            if peer.fault is None and peer.status is not None and peer.status.broker_name == broker_name
        ]  # fmt: skip
        return max(found)[1] if found else None

    async def ask(self, url: str, path: str, bytes_max: int) -> tuple[int, bytes]:
        """Send a request to a peer, and return status and body. Raises OSError or ValueError.

        The caller limits the time, and validates the body.
        """
        assert url in self.reports, "only configured peers are asked"
        context = await self._certificates.load_current()
        return await self._fetch(urlsplit(url), path, context, bytes_max)

    @asynccontextmanager
    async def open_stream(self, url: str, path: str, headers: Mapping[str, str]) -> AsyncGenerator[OpenAnswer, None]:
        """Send a request to a peer whose answer is read as it arrives. Raises OSError or ``BadAnswer``.

        The caller limits the time until the first byte, and validates the answer.
        """
        assert url in self.reports, "only configured peers are asked"
        context, split = await self._certificates.load_current(), urlsplit(url)
        target = f"{split.path.rstrip('/')}{path}"
        async with open_answer(split, "GET", target, {**headers, **self._authorization()}, b"", context) as answer:
            yield answer

    def _authorization(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _get(self, url: SplitResult, path: str, context: ssl.SSLContext) -> bytes:
        """Return the body of an answer 200. Raises OSError or ValueError for any other."""
        status, body = await self._fetch(url, path, context, ANSWER_BYTES_MAX)
        if status != 200:
            raise ValueError(f"it answered {status}")
        return body

    async def _fetch(self, url: SplitResult, path: str, context: ssl.SSLContext, bytes_max: int) -> tuple[int, bytes]:
        target = f"{url.path.rstrip('/')}{path}"
        try:
            return await http_request(url, "GET", target, self._authorization(), b"", context, bytes_max=bytes_max)
        except BadAnswer as error:
            raise ValueError(str(error)) from error


@final
class PeerRoles:
    """The current role reports of the other brokers of a shard. Owned by the event loop.

    ``Peers`` has only their last statuses, for people. Role recovery must know whether one of them has made a promise
    since, so all are asked at this moment, concurrently; one that does not answer in time counts as silent. Answers are
    untrusted: an invalid one, or one of another shard, is ignored.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers: Final = peers

    def __repr__(self) -> str:
        return f"<PeerRoles {self._peers!r}>"

    async def ask_all(self, own: HaStatus) -> dict[int, Report]:
        """Return the reports of the other brokers of the shard of ``own`` that answered, by their numbers."""
        answers = await asyncio.gather(*(self._ask(url) for url in self._peers.reports))
        others = [state for state in answers if state is not None and _is_other(state, own)]
        return reports_by_number([view_of(state, Report, asked_ms=0, answered_ms=0) for state in others])

    async def _ask(self, url: str) -> HaStatus | None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                status, body = await self._peers.ask(url, ROLE_PATH, ANSWER_BYTES_MAX)
            return status_of(msgspec.json.decode(body)) if status == 200 else None
        except (OSError, ValueError, RecursionError):
            return None


def _is_other(state: HaStatus, own: HaStatus) -> bool:
    """Return whether a report is of another broker of the same shard."""
    is_shard = (state.cluster, state.broker_name) == (own.cluster, own.broker_name)
    return is_shard and state.broker_id != own.broker_id and state.identity != own.identity
