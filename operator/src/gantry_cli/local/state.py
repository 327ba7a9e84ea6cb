"""The folder of a local group, STATE: its members, its orders, and the state that survives a restart of its supervisor.

    STATE/lock, stack.json   the lock of the running supervisor, and its addresses (``gantry_cli.stack``)
    STATE/up.log             the output of `gantry up --detach`
    STATE/manifest.yaml      the manifest that was applied last
    STATE/group.json         its members: names, ports, folders, processes
    STATE/annotations.json   orders of users, as annotations are in a cluster
    STATE/edit.lock          the lock for editing annotations.json or holds.json
    STATE/holds.json         members that `gantry kill` keeps down for a while
    STATE/lease-0.json       the Lease of shard 0: its epochs and electable set
    STATE/last-reports.json  the last report of each master
    STATE/decision.json      the status of the group and the latest decisions, for other processes
    STATE/token              the token of the sidecars, which permits every order
    STATE/secrets/           and replication-secret: accounts and certificates (``access``)
    STATE/stores/master-0/   and logs/, conf/, nameserver-0/
    STATE/broker/            the only store of `gantry up --single`, beside nameserver/; there is no manifest then

Every JSON file and the manifest are replaced as a whole. If one that a start reads is damaged, the start fails with an
error message that names the remedy, with two exceptions: a damaged annotations.json pauses the group, and a damaged
holds.json keeps no member down. No start reads decision.json.

Earlier versions had other names for two files (``held.json``, ``words.json``) and for some fields. They are read where
the present ones are missing, and the next write replaces them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, TypeVar, final

import msgspec

from gantry_access.tokens import first_token
from gantry_cli.errors import CliError
from gantry_cli.local.records import GroupRecord, MemberHold, member_name
from gantry_remoting.durable_files import replace_file
from gantry_spec.lease import FORMER_NAMES as LEASE_NAMES
from gantry_spec.manifest import BrokerGroup, ManifestError, read_group
from gantry_spec.manifest.annotations import GroupRequests, parse_states, read_requests, without_request
from gantry_spec.observed import LastReport
from gantry_status.former_names import STATE_NAMES, with_present_names

TOKEN_BYTES: Final = 24
"""The number of random bytes in the token."""
FORMER_NAMES: Final = {
    **STATE_NAMES, **LEASE_NAMES, "bound": "bottleneck", "has_voice": "has_vote", "words": "reports",
    "is_so": "is_true", "seen_ago_ms": "report_age_ms",
}  # fmt: skip
"""Fields of these files: the name in earlier versions, which is still read, and the present one."""
FORMER_NAMES_DEPTH: Final = 5
"""``decision.json`` has a list of forecasts, and each has a list of candidates."""


@final
class GroupState:
    """The files of one group. Any process may read them.

    The supervisor writes under the folder lock. Annotations and holds are edited under edit.lock, and `gantry apply`
    replaces the manifest.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path.absolute()
        self.group_file: Final = self.path / "group.json"
        self.manifest_file: Final = self.path / "manifest.yaml"
        self.annotations_file: Final = self.path / "annotations.json"
        self.holds_file: Final = self.path / "holds.json"
        self.decision_file: Final = self.path / "decision.json"
        self.token_file: Final = self.path / "token"
        self.last_reports_file: Final = self.path / "last-reports.json"
        self._former_holds_file: Final = self.path / "held.json"
        self._former_last_reports_file: Final = self.path / "words.json"

    def __repr__(self) -> str:
        return f"<GroupState {self.path}>"

    # -- paths ---------------------------------------------------------------------------------------------------------

    def store(self, shard: int, number: int) -> Path:
        """Return the store folder of a member."""
        return self.path / "stores" / member_name(shard, number)

    def sidecar(self, name: str) -> Path:
        """Return the folder in which the sidecar of a member keeps its own files."""
        return self.path / "sidecars" / name

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.path / "logs" / f"{name}.log"

    def conf(self, name: str) -> Path:
        """Return the path of a process's settings file."""
        return self.path / "conf" / f"{name}.conf"

    def lease(self, shard: int) -> Path:
        return self.path / f"lease-{shard}.json"

    def records(self) -> list[Path]:
        """Return the paths of all files that describe the group and its state, without a secret. Not all may exist."""
        return [
            self.manifest_file, self.group_file, self.annotations_file, self.holds_file, self.last_reports_file,
            self.decision_file, *sorted(self.path.glob("lease-*.json")),
        ]  # fmt: skip

    def confs_and_logs(self) -> list[Path]:
        """Return the settings files and logs of all processes."""
        return [*sorted(self.path.glob("conf/*.conf")), *sorted(self.path.glob("logs/*.log"))]

    def make_folders(self) -> None:
        """Create the folders of stores, logs and settings. Raises OSError."""
        for name in ("stores", "logs", "conf"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    # -- the group -----------------------------------------------------------------------------------------------------

    def read_group(self) -> GroupRecord | None:
        """Return the group's record, None if there is none. Raises CliError if it is damaged."""
        remedy = "remove the file: ports are then chosen again, and the stores are found by their names"
        return read_json_file(self.group_file, GroupRecord, remedy)

    def write_group(self, record: GroupRecord) -> None:
        """Write the group's record. It has no secret, so every user may read it."""
        replace_file(self.group_file, msgspec.json.format(msgspec.json.encode(record)), mode=0o644, is_durable=False)

    def is_single(self) -> bool:
        """Return whether the folder is that of a single broker. Raises CliError if the record is damaged.

        A folder of a version without a record is recognised by its store, unless it also has a manifest.
        """
        record = self.read_group()
        if record is not None and record.is_single:
            return True
        return (self.path / "broker").is_dir() and not self.manifest_file.exists()

    def read_manifest(self) -> BrokerGroup | None:
        """Return the manifest that was applied last, None without one. Raises CliError if it is damaged."""
        try:
            return read_group(self.manifest_file.read_bytes())
        except FileNotFoundError:
            return None
        except (ManifestError, OSError) as error:
            raise CliError(f"{self.manifest_file}: {error}", "apply the manifest again: gantry up -f FILE") from error

    def write_manifest(self, text: bytes) -> None:
        """Write a manifest. The caller has checked it before."""
        replace_file(self.manifest_file, text, mode=0o644)

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Hold the lock for editing annotations and holds, which several processes do. Blocks. Raises OSError."""
        lock = os.open(self.path / "edit.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def read_annotations(self) -> dict[str, str]:
        """Return the group's annotations. Raises CliError if the file is damaged."""
        remedy = "remove the file: it has only orders of users"
        return read_json_file(self.annotations_file, dict[str, str], remedy) or {}

    def write_annotations(self, annotations: dict[str, str]) -> None:
        replace_file(self.annotations_file, msgspec.json.encode(annotations), mode=0o600)

    def read_holds(self) -> list[MemberHold]:
        """Return the members that are kept down. Raises CliError if the file is damaged."""
        remedy = "remove the file: it only keeps members down for a while"
        path = _present_or_former(self.holds_file, self._former_holds_file)
        return read_json_file(path, list[MemberHold], remedy) or []

    def is_held(self, name: str, now_ms: int, machine_boot: str) -> bool:
        """Return whether a member is kept down at this time of that boot. A damaged file keeps no member down."""
        try:
            held = [one for one in self.read_holds() if (one.name, one.machine_boot) == (name, machine_boot)]
        except CliError:
            return False
        return any(now_ms < one.until_ms for one in held)

    def write_holds(self, held: list[MemberHold]) -> None:
        replace_file(self.holds_file, msgspec.json.encode(held), mode=0o600, is_durable=False)
        self._former_holds_file.unlink(missing_ok=True)

    # -- state that survives a restart of the supervisor ---------------------------------------------------------------

    def read_last_reports(self, machine_boot: str) -> dict[int, LastReport]:
        """Return the last report of each shard's master. Reports of another boot, with another clock, are dropped."""
        remedy = "remove the file: the possible loss of an asynchronous group is then unknown until its master answers"
        path = _present_or_former(self.last_reports_file, self._former_last_reports_file)
        found = read_json_file(path, LastReports, remedy)
        return found.reports if found is not None and found.machine_boot == machine_boot else {}

    def write_last_reports(self, machine_boot: str, reports: dict[int, LastReport]) -> None:
        document = LastReports(machine_boot=machine_boot, reports=reports)
        replace_file(self.last_reports_file, msgspec.json.encode(document), mode=0o600, is_durable=False)
        self._former_last_reports_file.unlink(missing_ok=True)

    def token(self) -> str:
        """Return the token that sidecars require. Creates it if there is none."""
        if not self.token_file.exists():
            replace_file(self.token_file, f"console:{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), mode=0o600)
        try:
            return first_token(self.token_file.read_text(encoding="utf-8"))
        except ValueError as error:
            remedy = "remove the file: the next start creates a new one"
            raise CliError(f"{self.token_file} is damaged: {error}", remedy) from error


@final
class LastReports(msgspec.Struct, kw_only=True):
    """The content of the file with the last reports, and the boot whose clock they use."""

    machine_boot: str
    reports: dict[int, LastReport]


# -- orders of users ---------------------------------------------------------------------------------------------------
# The orders for a local group are annotations in its folder, read in every round and removed when they are executed.
#
# A mistyped annotation lifts no fence: if some cannot be parsed, the valid states stay in force, as in a cluster. While
# the file itself is damaged, the states that were read last stay in force. A supervisor that has never read the file
# must not assume that no shard is fenced, so its group is paused until the file is repaired.


@final
class GroupAnnotations:
    """Reads and clears the orders in a group's annotations. Owned by one supervisor."""

    def __init__(self, state: GroupState, report_event: Callable[[str], None]) -> None:
        self._state: Final = state
        self._report_event: Final = report_event
        self._last_problem = ""
        self._fallback = GroupRequests(is_paused=True)
        """The requests that apply while the file is damaged."""

    def read(self) -> GroupRequests:
        """Return what the annotations request. Invalid orders are reported once and ignored; valid states stay."""
        try:
            annotations = self._state.read_annotations()
        except CliError as error:
            self._report_problem(str(error))
            return self._fallback
        self._fallback = parse_states(annotations)
        found, complaint = read_requests(annotations)
        self._report_problem(complaint)
        return found

    def _report_problem(self, text: str) -> None:
        if text and text != self._last_problem:
            self._report_event(f"invalid orders ignored: {text}")
        self._last_problem = text

    def clear(self, order: str) -> None:
        """Remove an executed order, and with the last one the accepted loss. Raises CliError and OSError."""
        with self._state.editing():
            annotations = self._state.read_annotations()
            change = without_request(annotations, order)
            if change:
                merged = annotations | change
                self._state.write_annotations({name: text for name, text in merged.items() if text is not None})


# -- JSON files --------------------------------------------------------------------------------------------------------
# JSON files are replaced as a whole, and a damaged file is an error with a remedy.


T = TypeVar("T")


def _present_or_former(path: Path, former: Path) -> Path:
    """Return the former path of a file that only an earlier version has written, otherwise the present one."""
    return former if former.exists() and not path.exists() else path


def read_json_file(path: Path, kind: type[T], remedy: str) -> T | None:
    """Return the content of a JSON file; None if there is none. Raises CliError with ``remedy`` if it is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", remedy) from error
    try:
        document = with_present_names(msgspec.json.decode(data), FORMER_NAMES, depth=FORMER_NAMES_DEPTH)
        return msgspec.convert(document, kind, str_keys=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CliError(f"{path} is damaged: {error}", remedy) from error


# -- the clock ---------------------------------------------------------------------------------------------------------
# Decisions, holds and last reports use the machine's boot-time clock, which also counts while the machine sleeps. What
# is only shown to people, such as the start of the group and the times of events, has the time of the wall clock.


def now_ms() -> int:
    """Return the time of the boot-time clock, which brokers use for grants and leases, so that times compare."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@cache
def machine_boot() -> str:
    """Return the id of the machine's boot, which changes when the clock restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
