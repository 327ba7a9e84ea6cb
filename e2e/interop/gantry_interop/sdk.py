"""SDKs of RocketMQ 5 through a gRPC proxy: which flows each of them performs, and their verdicts.

    servers (sdk_servers) <- the program of an SDK (sdk_programs), one process for each flow

A flow sends messages with hashed bodies, receives them, and prints one JSON line. It is ok if every message arrived and
none was altered; duplicates are counted. What an SDK cannot do is listed in `ABSENT`, and shown with its version.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gantry_interop import sdk_programs, sdk_servers
from gantry_interop.errors import InteropError
from gantry_interop.processes import Nursery

LANGUAGES: Final = tuple(sdk_programs.SDKS)
SHARES: Final[Mapping[str, int]] = {
    "normal": 30_000,
    "tag": 15_000,
    "sql": 15_000,
    "push": 20_000,
    "fifo": 10_000,
    "transaction": 5_000,
    "delay": 3_000,
    "recall": 1_000,
    "priority": 480,
    "invisible": 300,
    "dead-letters": 200,
    "fifo-dead-letters": 20,
}
"""The flows, and their messages in a run of 100,000. Messages that wait or fail take time, so there are few of them."""
FLOWS: Final = tuple(SHARES)
TOTAL: Final = sum(SHARES.values())
ABSENT: Final[Mapping[str, Mapping[str, str]]] = {
    "java": {"priority": "no priorities"},
    "go": {},
    "python": {},
    "node": {},
    "rust": {
        "push": "no push consumer",
        "recall": "no recall",
        "priority": "no priorities",
        "invisible": "no change of the invisible time",
    },
}
"""What an SDK does not have, by flow. The version of the SDK is pinned, so an update must look at this again."""
FLOW_SECONDS_MAX: Final = 1_800
"""The time limit of one flow; the programs stop waiting for messages earlier."""


@dataclass(frozen=True)
class FlowResult:
    """The verdict of one flow of one SDK."""

    language: str
    servers: str
    flow: str
    is_ok: bool
    messages: int = 0
    """The messages that were sent."""
    expected: int = 0
    """The messages that must arrive."""
    received: int = 0
    copies: int = 0
    """The messages that arrived, duplicates included."""
    seconds: float = 0.0
    note: str = ""
    absent: str = ""
    """Why the SDK cannot perform this flow; empty if it did."""
    version: str = ""
    """The version of the SDK."""

    def line(self) -> str:
        """Return the result as a line of text."""
        head = f"{self.servers:<19} {self.language:<7} {self.flow:<18}"
        if self.absent:
            return f"absent {head} {self.absent} (SDK {self.version})"
        counts = f"{self.messages:>6} sent, {self.received:>6} of {self.expected:>6}, {self.copies:>6} copies"
        return f"{'ok    ' if self.is_ok else 'FAILED'} {head} {counts}, {self.seconds:5.0f} s  {self.note}"


def shares(total: int) -> dict[str, int]:
    """Return the messages of each flow in a run of this many messages, at least ten each."""
    return {flow: max(10, share * total // TOTAL) for flow, share in SHARES.items()}


def absence(kind: str, language: str, flow: str) -> str:
    """Return why a flow cannot be performed by an SDK with servers of a kind; empty if it can."""
    return ABSENT[language].get(flow, "") or sdk_servers.absence(kind, flow)


def run_sdks(
    nursery: Nursery, kind: str, languages: Sequence[str], counts: Mapping[str, int], directory: Path,
    proxy_program: Sequence[str] = sdk_servers.GANTRY_PROXY,
) -> Iterator[FlowResult]:  # fmt: skip
    """Start servers of one kind, and yield the verdict of each flow of these SDKs. Raises InteropError."""
    for language in languages:
        sdk_programs.build(language)
    servers = sdk_servers.start(kind, nursery, directory, proxy_program)
    yield from run_flows(servers, languages, counts, directory)


def run_flows(
    servers: sdk_servers.Servers, languages: Sequence[str], counts: Mapping[str, int], directory: Path
) -> Iterator[FlowResult]:
    """Yield the verdict of each flow of these SDKs with running servers. Raises InteropError."""
    for language in languages:
        command = sdk_programs.command(language, directory)
        suffix, version = f"_{language}", sdk_programs.version_of(language)
        policy = sdk_servers.EXPONENTIAL_DELAYS if language == "node" else sdk_servers.LISTED_DELAYS
        reasons = {flow: absence(servers.kind, language, flow) for flow in counts}
        sdk_servers.prepare(servers, suffix, [flow for flow in counts if not reasons[flow]], policy)
        for flow, count in counts.items():
            if reasons[flow]:
                yield FlowResult(language, servers.kind, flow, is_ok=True, absent=reasons[flow], version=version)
                continue
            result = _perform(command, language, servers, flow, count, directory)
            yield replace(_with_dead_letters(result, servers, suffix), version=version)
            if not servers.proxy.is_running():
                raise InteropError(f"the proxy ended during {flow}; see {servers.proxy.log}:\n{servers.proxy.tail()}")


def _perform(
    command: Sequence[str], language: str, servers: sdk_servers.Servers, flow: str, count: int, directory: Path
) -> FlowResult:
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, servers.endpoints, f"_{language}", f"{flow}:{count}"], capture_output=True, text=True,
            timeout=FLOW_SECONDS_MAX, check=False, stdin=subprocess.DEVNULL, cwd=directory,
            env=sdk_programs.environment(directory),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return FlowResult(
            language, servers.kind, flow, is_ok=False, messages=count, note=f"no verdict within {FLOW_SECONDS_MAX} s"
        )
    seconds = time.monotonic() - began
    (directory / f"{language}-{flow}.log").write_text(done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return FlowResult(
            language, servers.kind, flow, is_ok=False, messages=count, seconds=seconds, note=done.stderr[-500:]
        )
    verdict: dict[str, Any] = json.loads(lines[-1])
    return FlowResult(
        language, servers.kind, flow, is_ok=bool(verdict["ok"]), messages=count, expected=int(verdict["expected"]),
        received=int(verdict["received"]), copies=int(verdict["copies"]), seconds=seconds, note=verdict["note"],
    )  # fmt: skip


def _with_dead_letters(result: FlowResult, servers: sdk_servers.Servers, suffix: str) -> FlowResult:
    """Return the result, with the verdict on the dead letters if the flow has any."""
    if not result.is_ok or result.flow not in sdk_servers.DEAD_LETTER_FLOWS:
        return result
    fault = sdk_servers.dead_letter_fault(servers, suffix, result.flow, result.expected)
    note = f"{result.note}; {fault or 'all are dead letters'}"
    return replace(result, is_ok=not fault, note=note)
