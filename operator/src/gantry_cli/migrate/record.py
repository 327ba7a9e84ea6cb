"""The record of a migration and the settings of the new broker: two small files in its directory.

    DIR/migration.json    the phase of the migration, and the original settings of the old broker
    DIR/broker.conf       the settings of the new broker: of a slave until the switch, of a master afterwards
    DIR/store, broker.log

The record is durable before a setting of the old broker is changed, so that a migration that was killed can be
continued or aborted by another run of the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, final

import msgspec

from gantry_cli.migrate.source import MigrationError
from gantry_remoting.addresses import join_address, split_address
from gantry_remoting.durable_files import replace_file
from gantry_status.broker_ports import replication_port_of
from gantry_wire.properties_text import read_valid_entries

COPIED: Final = (
    "brokerClusterName", "brokerName", "mappedFileSizeCommitLog", "maxMessageSize", "messageDelayLevel",
    "flushDiskType", "fileReservedTime", "deleteWhen", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
    "defaultTopicQueueNums", "enablePropertyFilter", "maxHashSlotNum", "maxIndexNum",
)  # fmt: skip
"""The settings that the new broker copies from the old one: those that affect clients or the format of files."""
SLAVE_ONLY: Final = ("haMasterIsClassic", "haMasterAddress", "haMasterBrokerAddress")
"""The settings that the new broker has only as a slave."""
CHANGED_BY_SWITCH: Final = (*SLAVE_ONLY, "brokerRole", "brokerId")
"""The settings of the new broker that the switch changes."""


@final
class UnsavedFileError(MigrationError):
    """A file of the migration cannot be written. It has its old content, or the new one if only the sync failed."""

    def __init__(self, path: Path, error: OSError) -> None:
        remedy = "free space on its disk, or permit writing there, then run the same command again"
        super().__init__(f"{path} cannot be written: {error.strerror}", remedy)


class Phase(StrEnum):
    """The phase of a migration."""

    ATTACHED = "ATTACHED"
    """The new broker follows the old one, whose settings are unchanged."""
    STOPPING = "STOPPING"
    """The old broker refuses messages, or may refuse them; its settings must be restored if the switch fails."""
    PROMOTING = "PROMOTING"
    """The new broker is the master, or is being promoted; the migration can no longer be aborted."""
    DONE = "DONE"


@final
class MigrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The durable record of one migration."""

    old_address: str
    broker_name: str
    phase: Phase = Phase.ATTACHED
    original: dict[str, str] = {}
    """The original values of the settings of the old broker that are changed."""
    epoch: int = 0
    """The epoch in which the new broker is promoted; 0 before the switch."""
    end: int = -1
    """The end of the old broker's log, at which the new broker continues to write it; -1 before the switch."""
    pause_ms: float = -1.0
    """The duration of the write pause; -1 before its end, and if the run that would have measured it was killed."""
    is_old_closed: bool = False
    """Whether the old broker has confirmed that it is closed to consumers, and that it accepted no messages after the
    switch."""


@final
class MigrationDirectory:
    """The paths of the new broker's files in its directory."""

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

    def load_record(self) -> MigrationRecord | None:
        """Return the record of an earlier run, or None. Raises MigrationError."""
        try:
            return msgspec.json.decode(self.record_file.read_bytes(), type=MigrationRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise MigrationError(f"{self.record_file} cannot be read: {error}") from error

    def save_record(self, record: MigrationRecord) -> None:
        """Write the record durably. Raises UnsavedFileError."""
        self._write(self.record_file, msgspec.json.format(msgspec.json.encode(record)))

    def write_conf(self, entries: Mapping[str, str], why: str) -> None:
        """Write the settings of the new broker for its next start. Raises UnsavedFileError."""
        self._write(self.conf, conf_text(entries, why).encode())

    def read_conf(self) -> dict[str, str]:
        """Return the settings of the new broker."""
        return read_valid_entries(self.conf.read_text("utf-8"))

    def _write(self, path: Path, data: bytes) -> None:
        try:
            replace_file(path, data)
        except OSError as error:
            raise UnsavedFileError(path, error) from error


def conf_text(entries: Mapping[str, str], why: str) -> str:
    """Return the text of a `broker.conf` with a comment."""
    return "\n".join(
        [f"# Written by `gantry migrate`: {why}.", *(f"{key}={value}" for key, value in entries.items()), ""]
    )


def replication_address(old: Mapping[str, str], old_address: str) -> str:
    """Return the replication address of the old broker according to its settings."""
    host, port = split_address(old_address)
    return join_address(
        (old.get("brokerIP2") or host).strip("[]"), int(old.get("haListenPort") or replication_port_of(port))
    )


def slave_conf(
    old: Mapping[str, str],
    old_address: str,
    directory: MigrationDirectory,
    own_address: Mapping[str, str],
    options: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of the new broker as a slave of the old one.

    They are copied from the old broker, overridden by ``own_address``, and those by the user's ``options``.
    """
    return {
        **{key: old[key] for key in COPIED if old.get(key)},
        "storePathRootDir": str(directory.store),
        "brokerRole": "SLAVE",
        "haMasterIsClassic": "true",
        "haMasterAddress": replication_address(old, old_address),
        "haMasterBrokerAddress": old_address,
        **own_address,
        **options,
    }


def master_conf(slave: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the new broker as a master, which is asynchronous since it has no slaves yet."""
    kept = {key: value for key, value in slave.items() if key not in SLAVE_ONLY}
    return {**kept, "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
