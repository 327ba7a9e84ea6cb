"""The gRPC proxies of the group, as they report themselves; polled only while a client reads the view of the group.

    --proxy URL     the base URL of the port for probes and metrics; a host name stands for each of its addresses
    /metrics        the figures of one proxy
    /readyz         the reason, if a proxy reports that it is not ready

In a cluster the URL is that of a headless Service, so the addresses are those of the pods that exist now, and a name
without an address is a group without proxies. The URLs come from the command line, so no caller can make this process
connect to another address. An answer is bounded in size and time and carries no token; it is untrusted.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, final
from urllib.parse import urlsplit

from pydantic import Field

from gantry_admin.documents import Document
from gantry_admin.http_request import BadAnswer, http_request
from gantry_remoting import join_address

POLL_INTERVAL_S: Final = 1.0
POLL_AFTER_REQUEST_S: Final = 15.0
"""For how long the proxies are still polled after the last request for the view of the group."""
ASK_TIMEOUT_S: Final = 2.0
"""How long a proxy, or the name service, may take to answer."""
ANSWER_BYTES_MAX: Final = 1 << 20
REASON_CHARACTERS_MAX: Final = 300
PROXIES_MAX: Final = 100
"""The most proxies that are polled; a group has at most so many."""
RATE_INTERVAL_S_MIN: Final = 0.5
"""The shortest time between two polls from which a rate is computed."""
NO_ADDRESS: Final = (socket.EAI_NONAME, socket.EAI_NODATA)
"""The errors of the name service for a name without an address."""

READY: Final = "gantry_proxy_ready"
CALLS_TOTAL: Final = "gantry_proxy_calls_total"
FIELDS: Final = {
    "gantry_proxy_clients": "clients",
    "gantry_proxy_telemetry_streams": "streams",
    "gantry_proxy_calls_running": "calls_running",
    "gantry_proxy_calls_refused_total": "calls_refused",
    "gantry_proxy_messages_in_flight": "messages_in_flight",
}
"""The metrics of a proxy that are shown, and their fields."""


class ProxyDocument(Document):
    """One gRPC proxy of the group."""

    address: str = Field(description="The address of its port for probes and metrics.")
    is_reachable: bool
    age_ms: int | None = Field(description="The age of the figures; null if there are none.")
    fault: str | None = Field(description="Why the last request failed; null if it succeeded.")
    is_ready: bool | None = Field(default=None, description="Whether it takes new clients.")
    not_ready_reason: str | None = None
    clients: int | None = Field(default=None, description="Connected clients.")
    streams: int | None = Field(default=None, description="Open streams of clients (Telemetry).")
    calls_running: int | None = None
    calls_per_second: float | None = Field(default=None, description="Ended calls between the last two polls.")
    calls_refused: int | None = Field(default=None, description="Since its start, because of `limits.calls`.")
    messages_in_flight: int | None = Field(default=None, description="Messages whose invisible time it renews.")


class ProxyReport(NamedTuple):
    """The last figures of a proxy, and why there are no newer ones."""

    figures: Mapping[str, float] = MappingProxyType({})
    not_ready_reason: str = ""
    at_s: float | None = None
    """When they arrived, by the monotonic clock; None before the first ones."""

    calls_per_second: float | None = None
    fault: str | None = None


@final
class Proxies:
    """The proxies of one group, as one sidecar sees them. Owned by the event loop."""

    def __init__(
        self, urls: tuple[str, ...], *, monotonic_s: Callable[[], float] = time.monotonic,
        resolve: Callable[[str], Awaitable[Iterable[str]]] | None = None,
    ) -> None:  # fmt: skip
        """``resolve`` returns the addresses of a host name, or raises ``socket.gaierror``; by default the system's."""
        self._urls: Final = urls
        self._monotonic_s: Final = monotonic_s
        self._resolve: Final = resolve or _resolve
        self._plain: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # unused: the port has no TLS
        self._reports: dict[str, ProxyReport] = {}
        self._requested_at_s = -math.inf

    def __repr__(self) -> str:
        return f"<Proxies {', '.join(self._reports) or 'none'}>"

    async def run(self) -> None:
        """Poll the proxies while a client reads the view of the group, until cancelled."""
        while self._urls:
            await self.poll_if_requested()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def poll_if_requested(self) -> None:
        """Poll if a client has read the view recently; else drop the figures, which would look like present ones."""
        if self._monotonic_s() - self._requested_at_s < POLL_AFTER_REQUEST_S:
            await self.poll()
        else:
            self._reports = {}

    def request(self) -> None:
        """Keep the polling active for ``POLL_AFTER_REQUEST_S``, because a client reads the view of the group."""
        self._requested_at_s = self._monotonic_s()

    async def poll(self) -> None:
        """Resolve all names, and request the figures of each address."""
        found = await asyncio.gather(*(self._addresses_of(url) for url in self._urls))
        addresses = dict(address for some in found for address in some.items())
        chosen = dict(sorted(addresses.items())[:PROXIES_MAX])
        reports = await asyncio.gather(*(self._ask(address, fault) for address, fault in chosen.items()))
        self._reports = dict(zip(chosen, reports, strict=True))

    def documents(self) -> list[ProxyDocument]:
        """Return the proxies in the order of their addresses."""
        now_s = self._monotonic_s()
        return [_document(address, report, now_s) for address, report in self._reports.items()]

    async def _ask(self, address: str, fault: str | None) -> ProxyReport:
        """Return the new report of a proxy. ``fault`` is why its address is unknown, or None."""
        old = self._reports.get(address, ProxyReport())
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                if fault is not None:
                    raise OSError(fault)
                figures = figures_of((await self._get(address, "/metrics")).decode("utf-8", "replace").splitlines())
                reason = "" if figures[READY] else (await self._get(address, "/readyz")).decode()
        except KeyError:
            return old._replace(fault="its answer has no metrics of a proxy")
        except TimeoutError:
            return old._replace(fault=f"no answer within {ASK_TIMEOUT_S:g} s")
        except (OSError, ValueError, BadAnswer) as error:
            return old._replace(fault=(str(error) or type(error).__name__)[:REASON_CHARACTERS_MAX])
        now_s = self._monotonic_s()
        rate = _rate(old, figures, now_s)
        return ProxyReport(figures, reason.strip()[:REASON_CHARACTERS_MAX], now_s, rate)

    async def _addresses_of(self, url: str) -> dict[str, str | None]:
        """Return the addresses of a URL's host, or the host and why it cannot be resolved. A name may have none."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return {join_address(address, port): None for address in await self._resolve(host)}
        except TimeoutError:
            return {join_address(host, port): f"the name service did not answer within {ASK_TIMEOUT_S:g} s"}
        except socket.gaierror as error:
            return {} if error.errno in NO_ADDRESS else {join_address(host, port): f"not resolved: {error.strerror}"}

    async def _get(self, address: str, path: str) -> bytes:
        server = urlsplit(f"http://{address}")
        return (await http_request(server, "GET", path, {}, b"", self._plain, bytes_max=ANSWER_BYTES_MAX)).body


def figures_of(lines: Iterable[str]) -> dict[str, float]:
    """Return the values of the wanted metrics, added up over their labels. Raises ValueError for no finite number."""
    wanted = {*FIELDS, CALLS_TOTAL, READY}
    found: dict[str, float] = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        if name in wanted:
            found[name] = found.get(name, 0.0) + float(value)
            if not math.isfinite(found[name]):
                raise ValueError(f"{name} is {value[:20]}, expected a finite number")
    return found


async def _resolve(host: str) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _rate(old: ProxyReport, figures: Mapping[str, float], now_s: float) -> float | None:
    """Return the calls per second since the old report; the old rate if that is too short ago."""
    if old.at_s is None:
        return None
    calls, elapsed_s = figures.get(CALLS_TOTAL, 0.0) - old.figures.get(CALLS_TOTAL, 0.0), now_s - old.at_s
    if elapsed_s < RATE_INTERVAL_S_MIN:
        return old.calls_per_second
    return None if calls < 0 else round(calls / elapsed_s, 1)  # another process has the address now


def _document(address: str, report: ProxyReport, now_s: float) -> ProxyDocument:
    counts = {field: int(report.figures[name]) for name, field in FIELDS.items() if name in report.figures}
    return ProxyDocument(
        address=address,
        is_reachable=report.fault is None,
        age_ms=None if report.at_s is None else int((now_s - report.at_s) * 1000),
        fault=report.fault,
        is_ready=None if report.at_s is None else bool(report.figures[READY]),
        not_ready_reason=report.not_ready_reason or None,
        calls_per_second=report.calls_per_second,
    ).model_copy(update=counts)
