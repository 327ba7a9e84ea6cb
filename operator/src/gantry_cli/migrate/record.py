"""What a migration must not forget, and what our broker is told: two small files in its directory.

    DIR/migration.json    how far the migration is, and how the old broker was before it was stopped
    DIR/broker.conf       of our broker; a slave's until the switch, a master's afterwards
    DIR/store, broker.log

The record is on the disk before the old broker is told anything, so that a command that is killed in the middle can be
run again, or taken back, by somebody who knows nothing of the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, final

import msgspec

from gantry_cli.migrate.source import CannotMigrate
from gantry_remoting.addresses import join_address, split_address
from gantry_remoting.durable_files import replace_file
from gantry_wire.properties_text import entries_of

COPIED: Final = (
    "brokerClusterName", "brokerName", "mappedFileSizeCommitLog", "maxMessageSize", "messageDelayLevel",
    "flushDiskType", "fileReservedTime", "deleteWhen", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
    "defaultTopicQueueNums", "enablePropertyFilter", "maxHashSlotNum", "maxIndexNum",
)  # fmt: skip
"""What our broker takes over from the old one's settings: what clients notice, and what the files need."""
SLAVE_ONLY: Final = ("haMasterIsClassic", "haMasterAddress", "haMasterBrokerAddress")


class Phase(StrEnum):
    """How far it is."""

    ATTACHED = "ATTACHED"
    """Our broker follows. The old one is as it was."""
    STOPPING = "STOPPING"
    """The old broker takes no messages, or may take none: it has to be put back if nothing comes of it."""
    PROMOTING = "PROMOTING"
    """The point of no return: our broker is the master, or is about to be."""
    DONE = "DONE"


@final
class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One migration."""

    old_address: str
    broker_name: str
    phase: Phase = Phase.ATTACHED
    original: dict[str, str] = {}
    """The old broker's settings that were changed, as they were."""
    epoch: int = 0
    end: int = -1
    """Where the old broker's log ended, and ours went on."""
    pause_ms: float = -1.0


@final
class Home:
    """The directory of our broker."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path.absolute()

    @property
    def conf(self) -> Path:
        return self.path / "broker.conf"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def control(self) -> Path:
        return self.store / "control.sock"

    @property
    def log(self) -> Path:
        return self.path / "broker.log"

    @property
    def record_file(self) -> Path:
        return self.path / "migration.json"

    def record(self) -> Record | None:
        """What an earlier run has left."""
        try:
            return msgspec.json.decode(self.record_file.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise CannotMigrate(f"{self.record_file} cannot be read: {error}") from error

    def keep(self, record: Record) -> None:
        """Have it on the disk."""
        self._write(self.record_file, msgspec.json.format(msgspec.json.encode(record)))

    def write_conf(self, entries: Mapping[str, str], why: str) -> None:
        """Our broker's settings, for its next start."""
        self._write(self.conf, conf_text(entries, why).encode())

    def read_conf(self) -> dict[str, str]:
        """As it is."""
        return entries_of(self.conf.read_text("utf-8"))

    def _write(self, path: Path, data: bytes) -> None:
        try:
            replace_file(path, data)
        except OSError as error:
            raise CannotMigrate(f"{path} cannot be written: {error.strerror}", "choose another --data") from error


def conf_text(entries: Mapping[str, str], why: str) -> str:
    """A `broker.conf`."""
    return "\n".join(
        [f"# Written by `gantry migrate`: {why}.", *(f"{key}={value}" for key, value in entries.items()), ""]
    )


def stream_address(old: Mapping[str, str], old_address: str) -> str:
    """Where the old broker's replication stream is, by its settings."""
    host, port = split_address(old_address)
    return join_address((old.get("brokerIP2") or host).strip("[]"), int(old.get("haListenPort") or port + 1))


def slave_conf(
    old: Mapping[str, str], old_address: str, home: Home, own: Mapping[str, str], options: Mapping[str, str]
) -> dict[str, str]:
    """What our broker is told while it follows: what the old one has, where it is, then ``own``, then ``options``."""
    return {
        **{key: old[key] for key in COPIED if old.get(key)},
        "storePathRootDir": str(home.store),
        "brokerRole": "SLAVE",
        "haMasterIsClassic": "true",
        "haMasterAddress": stream_address(old, old_address),
        "haMasterBrokerAddress": old_address,
        **own,
        **options,
    }


def master_conf(slave: Mapping[str, str]) -> dict[str, str]:
    """What it is told from the switch on: a master, with nobody to wait for until slaves are attached to it."""
    kept = {key: value for key, value in slave.items() if key not in SLAVE_ONLY}
    return {**kept, "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
