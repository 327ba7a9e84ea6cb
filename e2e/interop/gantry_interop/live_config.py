"""Java's admin client changes settings of a running broker and name server, which are then started again.

What the client can see is judged in Java: a change holds at once and is shown, it survives the restart and can be
taken back, and what may not change is refused by its name without a trace. What it cannot see is judged here: each
attempt has left one line in the audit log, with the names of the keys and never with a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gantry_interop import drivers, peers
from gantry_interop.processes import Child, Nursery

BEFORE, AFTER = "change", "changed"
AUDIT = " gantry.audit {"
NO_PERMISSION = 16
FORBIDDEN = {"broker": ("storePathRootDir", "aclFile", "noSuchSetting"), "nameserver": ("kvConfigPath",)}
"""What the driver tries, by whom it asks."""
CODES = {"broker": 25, "nameserver": 318}
VALUES = ("/elsewhere", "100000", "50000", "lots")
"""What the driver sets, and no line may tell."""


@dataclass(frozen=True)
class ConfigReport:
    """What was seen."""

    verdicts: list[drivers.Verdict]
    lines_seen: int
    broken: list[str]
    """Promises about the audit log."""

    @property
    def kept(self) -> bool:
        return bool(self.verdicts) and all(one.kept for one in self.verdicts) and not self.broken

    def lines(self) -> list[str]:
        return [f"{self.lines_seen} changes and attempts are in the audit logs", *(f"BROKEN: {b}" for b in self.broken)]

    def as_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "audit_lines": self.lines_seen,
            "broken": self.broken,
            "verdicts": [one.as_json() for one in self.verdicts],
        }


def play(
    nursery: Nursery,
    clients: Sequence[str],
    order: drivers.Order,
    directory: Path,
    report: Callable[[drivers.Verdict], None] = lambda verdict: None,
) -> ConfigReport:
    """Each client changes, is followed by a restart of both servers, and looks again."""
    layout = peers.Layout(directory / "peer")
    known = order.at(layout.name_server)
    verdicts: list[drivers.Verdict] = []
    broken: list[str] = []
    seen = 0
    for client in clients:
        logs: list[Child] = []
        for scenario in (BEFORE, AFTER):
            peer = peers.start("gantry", nursery, layout)
            verdicts += drivers.play(nursery, client, (scenario,), known, directory / f"home-{client}", report)
            peer.stop()
            logs += [peer.broker, peer.name_server]
        lines = list(_audit_lines(logs))
        seen += len(lines)
        broken += [f"{client}: {promise}" for promise in broken_promises(lines)]
    return ConfigReport(verdicts, seen, broken)


def broken_promises(lines: Sequence[dict[str, Any]]) -> list[str]:
    """What one client's lines lack."""
    broken = []
    for server, forbidden in FORBIDDEN.items():
        mine = [line for line in lines if (line["server"], line["code"]) == (server, CODES[server])]
        done = sum(line["outcome"] == 0 for line in mine)
        if done != 2:
            broken.append(f"a line for the change and one for taking it back at the {server}, not {done}")
        for key in forbidden:
            named = [line for line in mine if line["outcome"] == NO_PERMISSION and key in line["on"]["keys"]]
            if len(named) != 1:
                broken.append(f"one line for the attempt to set {key}, not {len(named)}")
    told = [value for value in VALUES if any(value in json.dumps(line["on"]) for line in lines)]
    return broken + [f"no line tells a value, such as {value}" for value in told]


def _audit_lines(children: Iterable[Child]) -> Iterable[dict[str, Any]]:
    for child in children:
        for line in child.log.read_text(errors="replace").splitlines():
            _, mark, text = line.partition(AUDIT)
            if mark:
                yield json.loads("{" + text)
