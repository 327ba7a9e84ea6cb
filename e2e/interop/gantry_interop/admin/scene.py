"""Both peers side by side, prepared in the same way: Apache's name server and broker, and Gantry's.

The output of commands depends on the state of the servers. So both get the same names and settings, the same files
to read, and the same residents (`Residents.java`): online clients, clients that have left, and messages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gantry_interop import java, peers
from gantry_interop.admin.json_process import JsonProcess
from gantry_interop.admin.masks import Window
from gantry_interop.admin.plan import FILES
from gantry_interop.admin.steps import LOG_END, Outcome, Step
from gantry_interop.processes import Nursery, wait_until

KINDS: Final = ("apache", "gantry")
CLUSTER: Final = "InteropCluster"
BROKER_NAME: Final = "broker-a"
ANSWER_SECONDS_MAX: Final = 120.0
LOG_SECONDS_MAX: Final = 300.0
TOOL_LOG: Final = Path("logs", "rocketmqlogs", "broker_default.log")
RESIDENTS_START_SECONDS_MAX: Final = 600.0
TEMPORARY: Final = "temporary"
"""The folder for temporary files of the tool."""
FAR_MS: Final = 1_900_000_000_000

TOOL: Final = java.Program(
    java.REFERENCE, "dev.gantry.interop.AdminTool", heap_mib=256,
    properties={"java.security.manager": "allow", "user.timezone": "UTC", "user.language": "en"},
    options=java.OPENED_MODULES,
)  # fmt: skip
RESIDENTS: Final = java.Program(
    java.REFERENCE, "dev.gantry.interop.Residents", heap_mib=256, properties={"user.timezone": "UTC"}
)

SETTINGS: Final = {
    "apache": {"enabledAppendPropCRC": "true", "timerWheelEnable": "true"},
    "gantry": {"slaveReadEnable": "false"},
}
"""Gantry's broker seals every record with RocketMQ's checksum property. Apache's broker does so with this setting, and
then records have the same length. Without its timers Apache's broker cannot delete a topic (it looks up their metrics).
Reading from slaves is off by default at Apache's broker, and on at Gantry's.
"""


@dataclass
class Side:
    """One peer and its facts."""

    kind: str
    peer: peers.Peer
    files: Path
    words: dict[str, str] = field(default_factory=dict)
    """The values of the names in braces in a step's arguments."""
    credentials: dict[str, str] = field(default_factory=dict)
    """The credentials that sign the commands, if the servers require accounts."""

    @staticmethod
    def start(kind: str, nursery: Nursery, directory: Path, settings: Mapping[str, str] | None = None) -> Side:
        """Start the servers, and write the files that commands read."""
        layout = peers.Layout(directory, settings={**SETTINGS[kind], **(settings or {})})
        peer = peers.start(kind, nursery, layout)
        side = Side(kind, peer, directory / "files")
        side.files.mkdir()
        for name, text in FILES.items():
            (side.files / name).write_text(text)
        side.words = {
            "names": peer.address,
            "broker": peer.broker_address,
            "ha": f"{layout.advertised_host}:{layout.broker_port + 1}",
            "cluster": CLUSTER,
            "files": str(side.files),
            "directory": str(directory),
            "temporary": str(directory.parent / TEMPORARY),
            "instance": f"{kind}-watchers",
            "start_ms": str(int(time.time() * 1000)),
            "far_ms": str(FAR_MS),
        }
        return side

    @property
    def facts(self) -> dict[str, str]:
        """Return the facts of this peer only, which are masked by their names."""
        return {name: text for name, text in self.words.items() if name not in ("cluster", "start_ms", "far_ms")}

    def start_residents(self, residents: JsonProcess) -> None:
        """Start the resident clients, and learn the ids of their messages."""
        question = {
            "peer": self.kind, "name_server": self.peer.address, "broker_name": BROKER_NAME,
            "broker": self.peer.broker_address,
        }  # fmt: skip
        for name, found in residents.request(question, RESIDENTS_START_SECONDS_MAX).items():
            self.words |= _numbered_words(name, found)

    def run(self, tool: JsonProcess, step: Step) -> Outcome:
        """Run one command at this peer."""
        question = {"arguments": step.arguments(self.words), "seconds_max": step.seconds_max, **self.credentials}
        log = tool.home / TOOL_LOG
        log_start = log.stat().st_size if log.exists() else 0
        answer = tool.request(question, step.seconds_max + ANSWER_SECONDS_MAX)
        written = None if step.output_file is None else self.files / step.output_file
        text = sort_names(written.read_text()) if written is not None and written.exists() else None
        if step.logs is not None:
            text = read_logged(log, log_start, step.logs)
        return Outcome(answer["out"], answer["error"], answer["exit"], answer["is_cut"], text)


def read_logged(log: Path, start: int, mark: str) -> str:
    """Return the lines that a command writes to the tool's log, from `start` to the end that it marks."""

    def lines() -> list[str]:
        text = log.read_bytes()[start:].decode("utf-8", "replace") if log.exists() else ""
        return [line[line.index(mark) :] for line in text.splitlines() if mark in line]

    wait_until("the end in the log", lambda: any(line.endswith(LOG_END) for line in lines()), LOG_SECONDS_MAX)
    found = lines()
    end = next(number for number, line in enumerate(found) if line.endswith(LOG_END))
    return "\n".join(found[: end + 1]) + "\n"


def sort_names(text: str) -> str:
    """Return a JSON file with sorted names, because Java writes them in the order of its hash tables."""
    try:
        return json.dumps(json.loads(text), indent=1, sort_keys=True)
    except ValueError:
        return text


def _numbered_words(name: str, found: Any) -> dict[str, str]:
    """Convert `orders_places: [...]` to `orders_place_0` and so on."""
    if isinstance(found, str):
        return {name: found}
    one = name.removesuffix("s")
    return {f"{one}_{number}": text for number, text in enumerate(found)}


def window(start: float) -> Window:
    """Return the time from `start` (in seconds) until now."""
    return Window(int(start * 1000), int(time.time() * 1000))
