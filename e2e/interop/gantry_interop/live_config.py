"""Java's admin client changes settings of a running broker and name server, which are then started again.

Java checks what the client can see: a change is effective at once and shown, it survives the restart and can be
reverted, and a fixed setting is refused by name and not changed. Python checks the audit log: each
attempt has left one line, with the names of the keys and never with a value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gantry_interop import drivers, peers
from gantry_interop.processes import Child, Nursery

CHANGE_SCENARIO, CHECK_SCENARIO = "change", "changed"
"""The driver's scenarios: one changes settings, one checks them after the restart."""

AUDIT = " gantry.audit {"
NO_PERMISSION = 16
FORBIDDEN = {"broker": ("storePathRootDir", "aclFile", "noSuchSetting"), "nameserver": ("kvConfigPath",)}
"""The forbidden keys that the driver tries, by server."""
CODES = {"broker": 25, "nameserver": 318}
VALUES = ("/elsewhere", "100000", "50000", "lots")
"""The values that the driver sets, which no line may contain."""


@dataclass(frozen=True)
class ConfigReport:
    """The results of a run."""

    verdicts: list[drivers.Verdict]
    lines_seen: int
    broken: list[str]
    """Broken rules of the audit log."""

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


def run_scenarios(
    nursery: Nursery,
    clients: Sequence[str],
    options: drivers.DriverOptions,
    directory: Path,
    report: Callable[[drivers.Verdict], None] = lambda verdict: None,
) -> ConfigReport:
    """Let each client change settings, restart both servers, and check the settings again."""
    layout = peers.Layout(directory / "peer")
    known = options.at(layout.name_server)
    verdicts: list[drivers.Verdict] = []
    broken: list[str] = []
    seen = 0
    for client in clients:
        logs: list[Child] = []
        for scenario in (CHANGE_SCENARIO, CHECK_SCENARIO):
            peer = peers.start("gantry", nursery, layout)
            verdicts += drivers.run_scenarios(nursery, client, (scenario,), known, directory / f"home-{client}", report)
            peer.stop()
            logs += [peer.broker, peer.name_server]
        lines = list(_audit_lines(logs))
        seen += len(lines)
        broken += [f"{client}: {rule}" for rule in broken_rules(lines)]
    return ConfigReport(verdicts, seen, broken)


def broken_rules(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rules that one client's lines break."""
    broken = []
    for server, forbidden in FORBIDDEN.items():
        own_lines = [line for line in lines if (line["server"], line["code"]) == (server, CODES[server])]
        done = sum(line["outcome"] == 0 for line in own_lines)
        if done != 2:
            broken.append(f"a line for the change and one for its reversal at the {server}, not {done}")
        for key in forbidden:
            named = [line for line in own_lines if line["outcome"] == NO_PERMISSION and key in line["on"]["keys"]]
            if len(named) != 1:
                broken.append(f"one line for the attempt to set {key}, not {len(named)}")
    leaked_values = [value for value in VALUES if any(value in json.dumps(line["on"]) for line in lines)]
    return broken + [f"no line contains a value, such as {value}" for value in leaked_values]


def _audit_lines(children: Iterable[Child]) -> Iterable[dict[str, Any]]:
    for child in children:
        for line in child.log.read_text(errors="replace").splitlines():
            _, mark, text = line.partition(AUDIT)
            if mark:
                yield json.loads("{" + text)
