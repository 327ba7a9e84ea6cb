"""A campaign: many sessions (connections with mutated frames) against one server, and a probe between them.

The probe is an ordinary client, whose messages must be stored, found and unchanged.

Sessions are numbered, and all the random numbers of a session come from the run's seed, the target and its number. That
makes one session repeatable without the previous ones, except for the offsets of stored messages.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import Final, final

from crash.processes import ServerProcess
from fuzz.golden import golden_seeds
from fuzz.mutate import Mutator
from fuzz.pools import KnownMessages
from fuzz.probe import Probe
from fuzz.session import Session
from fuzz.tally import NOT_SUPPORTED, Tally

from gantry_wire import RequestCode

SESSIONS_AT_ONCE: Final = 4
PROBE_EVERY_SESSIONS: Final = 25
"""After so many sessions the server is checked: by the probe, by its log, and whether it still runs."""
# Numbers of no request code, which a server answers as not supported.
UNKNOWN_CODES: Final = (-1, 0, 1, 9, 999, 1500, 32767, 65536, 200_050, 2_147_483_647)
FREQUENT_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.REGISTER_BROKER, RequestCode.GET_ROUTEINFO_BY_TOPIC,
    }
)  # fmt: skip
"""Requests of the most used paths; they are sent most often."""
COSTLY_CODES: Final = frozenset(
    {
        RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.HEART_BEAT,
        RequestCode.QUERY_MESSAGE, RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.UPDATE_BROKER_CONFIG,
    }
)  # fmt: skip
"""Requests that write a file, search the index, are answered with a whole table, or cause requests to other clients;
they are sent less often."""
ALARMS: Final = (
    "unexpected error while handling",
    "unexpected error in store",
    "Traceback",
    " CRITICAL ",
    "AssertionError",
    "exception was never retrieved",
)
"""Parts of log lines that a server must not write for any frame that it gets."""


@final
class LogWatch:
    """The lines that a server has written to its log since the last check."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._position = 0

    def alarms(self) -> list[str]:
        """Return new lines that a server under attack must not write, with their following lines."""
        with self._server.log.open("rb") as log:
            log.seek(self._position)
            data = log.read()
        end = data.rfind(b"\n") + 1
        self._position += end
        return alarms_in(data[:end].decode(errors="replace").splitlines())


def alarms_in(lines: list[str]) -> list[str]:
    """Return alarming lines, with tracebacks as a whole, and each text once in spite of different time stamps."""
    found: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        start = at
        at += 1
        if not any(alarm in line for alarm in ALARMS):
            continue
        while at < len(lines) and lines[at].startswith((" ", "Traceback")):
            at += 1
        text = lines[start : at + 1]
        at += 1
        found.setdefault(text[-1], "\n    ".join(part[:300] for part in text[:1] + text[1:][-25:]))
    return list(found.values())


@final
class Campaign:
    """All sessions against one server, with the probe that checks it. Owned by one event loop."""

    def __init__(
        self,
        server: ServerProcess,
        ports: list[int],
        probe: Probe,
        *,
        seed: int,
        report_progress: Callable[[str], None],
    ) -> None:
        self.tally = Tally(server.name)
        self._server = server
        self._ports = ports
        self._probe = probe
        self._seed = seed
        self._report_progress = report_progress
        self._known_messages: KnownMessages = probe.known
        self._log = LogWatch(server)
        self._next = 0
        self._codes: list[int] = []
        self._weights: list[float] = []
        self._began_at = time.monotonic()

    def __repr__(self) -> str:
        return f"<Campaign {self._server.name} frames={self.tally.frames}>"

    async def find_handled_codes(self) -> None:
        """Send every code once, unmutated: codes that are answered with 3 are sent seldom from then on."""
        replies = await self._probe.ask_every_code(self._known_messages)
        self._codes = [int(code) for code in RequestCode] + list(UNKNOWN_CODES)
        handled = {code for code, reply in replies.items() if reply not in (None, NOT_SUPPORTED)}
        self._weights = [self._weight(code, handled) for code in self._codes]
        self._report_progress(f"{self._server.name}: {len(handled)} of {len(replies)} request codes have a handler")

    def _weight(self, code: int, handled: set[int]) -> float:
        """Return how often a request code is sent, relative to others."""
        if code in COSTLY_CODES:
            return 1.0 if code in handled else 0.4
        if code in handled:
            return 16.0 if code in FREQUENT_CODES else 5.0
        return 0.4

    async def run(self, frames: int) -> None:
        """Run sessions until `frames` more frames were sent, or a fault was found."""
        target = self.tally.frames + frames
        await asyncio.gather(*(self._work(target) for _ in range(SESSIONS_AT_ONCE)))
        await self._check_server()

    async def replay(self, sessions: Iterable[int]) -> None:
        """Run exactly these sessions, one after the other."""
        for number in sessions:
            self._report_progress(f"{self._server.name}: session {number}")
            await self._session(number)
            await self._check_server(number)

    async def _work(self, target: int) -> None:
        while self.tally.frames < target and not self.tally.findings:
            number = self._next
            self._next += 1
            await self._session(number)
            if number % PROBE_EVERY_SESSIONS == 0:
                await self._check_server(number)

    async def _session(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{self._server.name}/{number}")
        mutator = Mutator(rng, self._known_messages, golden_seeds())
        session = Session(number, rng, mutator, self.tally)
        try:
            await session.run(rng.choice(self._ports), self._codes, self._weights)
        except OSError as error:
            self.tally.find(number, f"no connection: {error}")
        self.tally.kinds += mutator.kinds

    async def _check_server(self, number: int | None = None) -> None:
        """Check that the server is alive, serves the probe, and logs no alarm."""
        if not self._server.is_running:
            self.tally.find(number, f"the process has ended\n{self._server.tail()}")
            return
        fault = await self._probe.find_fault()
        if fault is not None:
            self.tally.find(number, f"the probe failed: {fault}")
        for text in self._log.alarms():
            self.tally.find(number, f"its log has (sessions up to {self._next - 1}):\n    {text}")
        if number is not None and number % (PROBE_EVERY_SESSIONS * 40) == 0:
            seconds = time.monotonic() - self._began_at
            self._report_progress(
                f"{self._server.name}: {self.tally.frames:,} frames, {self.tally.handled:,} handled, "
                f"{self.tally.frames / seconds:,.0f} frames/s, "
                f"{self._server.anonymous_bytes() / (1 << 20):.1f} MiB anonymous"
            )
