"""The folder of a local group, STATE: who is in the group, what was asked of it, and what must not be forgotten.

    STATE/lock, stack.json   whoever runs it holds the lock; where the name servers are (``gantry_cli.stack``)
    STATE/manifest.yaml      what the group should be, as it was handed over last
    STATE/group.json         its members: names, ports, folders, processes
    STATE/annotations.json   what people have asked of it; compare ``kubectl annotate``
    STATE/edit.lock          held by whoever reads one of these two to write it anew
    STATE/held.json          members that a person keeps down for a while
    STATE/lease-0.json       the Lease of shard 0: epochs, and who may be elected
    STATE/words.json         the last word of each master
    STATE/decision.json      what was seen and decided last, for whoever looks
    STATE/token              who shows this to a sidecar may order everything
    STATE/stores/master-0/   and logs/, conf/, nameserver-0/
    STATE/broker/            the only store of `gantry up --single`, beside nameserver/; there is no manifest then

Everything is written whole or not at all. A file that is damaged stops a start, and says how to go on.
"""

from __future__ import annotations

import fcntl
import os
import re
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
from gantry_cli.processes import ServerProcess
from gantry_remoting.durable_files import replace_file
from gantry_spec.manifest import BrokerGroup, ManifestError, read_group
from gantry_spec.manifest.annotations import Wanted, asked, standing, without_request
from gantry_spec.observed import LastWord

TOKEN_BYTES: Final = 24


@final
class MemberRecord(msgspec.Struct, kw_only=True):
    """One broker and its sidecar."""

    name: str
    shard: int
    number: int
    port: int
    ha_port: int
    sidecar_port: int
    sidecar_url: str
    store: str
    log: str
    sidecar_log: str
    pid: int | None = None
    boot_id: str = ""
    """Of its process, while it runs."""
    sidecar_pid: int | None = None
    sidecar_boot_id: str = ""
    identity: str = ""
    """The uuid of its store, once it is known."""

    def note_processes(self, broker: ServerProcess, sidecar: ServerProcess | None) -> None:
        """Record which processes run now."""
        self.pid, self.boot_id = broker.pid, broker.boot_id
        if sidecar is not None:
            self.sidecar_pid, self.sidecar_boot_id = sidecar.pid, sidecar.boot_id


@final
class NameServerRecord(msgspec.Struct, kw_only=True):
    """One name server of the group's own."""

    name: str
    address: str
    port: int
    data: str
    log: str
    pid: int | None = None
    boot_id: str = ""

    def note_process(self, process: ServerProcess) -> None:
        """Record which process runs now."""
        self.pid, self.boot_id = process.pid, process.boot_id


@final
class GroupRecord(msgspec.Struct, kw_only=True):
    """The group as processes."""

    name: str
    host: str
    is_single: bool = False
    """Whether it is the broker of `gantry up --single`, wherever its store lies."""
    name_servers: list[NameServerRecord] = []
    addresses: list[str] = []
    """Of all name servers, also those that others run."""
    members: list[MemberRecord] = []
    console_url: str = ""
    pid: int | None = None
    """Of whoever supervises it; None if nobody does."""
    started_at_ms: int = 0
    notes: list[str] = []
    """What of the manifest means nothing here, and where buffers lie."""

    def begin(self, notes: list[str]) -> None:
        """Record that this process supervises the group from now on."""
        self.notes, self.pid, self.started_at_ms = notes, os.getpid(), time.time_ns() // 1_000_000

    def end(self) -> None:
        """Record that no process supervises the group any more."""
        self.pid = None

    def member(self, shard: int, number: int) -> MemberRecord | None:
        """The one with this number."""
        return next((one for one in self.members if (one.shard, one.number) == (shard, number)), None)


@final
class Held(msgspec.Struct, kw_only=True):
    """A member that is not started before a time."""

    name: str
    until_ms: int
    """By the machine's boot-time clock, which all processes share and which cannot be set."""

    machine_boot: str
    """The boot of the machine whose clock that is. After another boot no member is held."""


@final
class GroupState:
    """The files of one group. Looking needs nothing; whoever writes has claimed the folder."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path.absolute()
        self.group_file: Final = self.path / "group.json"
        self.manifest_file: Final = self.path / "manifest.yaml"
        self.annotations_file: Final = self.path / "annotations.json"
        self.held_file: Final = self.path / "held.json"
        self.decision_file: Final = self.path / "decision.json"
        self.token_file: Final = self.path / "token"
        self.words_file: Final = self.path / "words.json"

    def __repr__(self) -> str:
        return f"<GroupState {self.path}>"

    # -- paths ---------------------------------------------------------------------------------------------------------

    def store(self, shard: int, number: int) -> Path:
        """Of a member."""
        return self.path / "stores" / member_name(shard, number)

    def log(self, name: str) -> Path:
        """Of a process."""
        return self.path / "logs" / f"{name}.log"

    def conf(self, name: str) -> Path:
        """The ``broker.conf`` of a member."""
        return self.path / "conf" / f"{name}.conf"

    def lease(self, shard: int) -> Path:
        return self.path / f"lease-{shard}.json"

    def make_folders(self) -> None:
        """Those that files are put into. Raises OSError."""
        for name in ("stores", "logs", "conf"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    # -- the group -----------------------------------------------------------------------------------------------------

    def read_group(self) -> GroupRecord | None:
        """Raises CliError if it is damaged."""
        remedy = "remove it: ports are chosen anew then, and the stores are found by their names"
        return read_whole(self.group_file, GroupRecord, remedy)

    def write_group(self, record: GroupRecord) -> None:
        """Readable for whoever may enter the folder: there is no secret in it."""
        replace_file(self.group_file, msgspec.json.format(msgspec.json.encode(record)), mode=0o644, is_durable=False)

    def is_single(self) -> bool:
        """Whether the folder is that of a broker alone. Raises CliError if the record is damaged.

        One from before there was a record is recognised by its store, while no group has been started beside it.
        """
        record = self.read_group()
        if record is not None and record.is_single:
            return True
        return (self.path / "broker").is_dir() and not self.manifest_file.exists()

    def read_manifest(self) -> BrokerGroup | None:
        """What was handed over last. Raises CliError if it is damaged."""
        try:
            return read_group(self.manifest_file.read_bytes())
        except FileNotFoundError:
            return None
        except (ManifestError, OSError) as error:
            raise CliError(
                f"{self.manifest_file}: {error}", "hand the manifest over again: gantry up -f FILE"
            ) from error

    def write_manifest(self, text: bytes) -> None:
        """Hand a manifest over. It was read and compared before."""
        replace_file(self.manifest_file, text, mode=0o644)

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Alone with what several processes edit: orders of people, and who is held. Blocks. Raises OSError."""
        lock = os.open(self.path / "edit.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def read_annotations(self) -> dict[str, str]:
        """Raises CliError if they are damaged."""
        return read_whole(self.annotations_file, dict[str, str], "remove it: it holds only orders of people") or {}

    def write_annotations(self, annotations: dict[str, str]) -> None:
        replace_file(self.annotations_file, msgspec.json.encode(annotations), mode=0o600)

    def read_held(self) -> list[Held]:
        """Raises CliError if they are damaged."""
        return read_whole(self.held_file, list[Held], "remove it: it only keeps members down for a while") or []

    def is_held(self, name: str, now_ms: int, machine_boot: str) -> bool:
        """Whether a member is kept down at this moment of that boot. A damaged file keeps no member down."""
        try:
            held = [one for one in self.read_held() if (one.name, one.machine_boot) == (name, machine_boot)]
        except CliError:
            return False
        return any(now_ms < one.until_ms for one in held)

    def write_held(self, held: list[Held]) -> None:
        replace_file(self.held_file, msgspec.json.encode(held), mode=0o600, is_durable=False)

    # -- what is remembered over a restart -----------------------------------------------------------------------------

    def read_words(self, machine_boot: str) -> dict[int, LastWord]:
        """Of each shard's master. Those of another boot of the machine tell times of another clock, and are dropped."""
        remedy = "remove it: how much an asynchronous group may lose is then not known until its master is heard again"
        words = read_whole(self.words_file, Words, remedy)
        return words.words if words is not None and words.machine_boot == machine_boot else {}

    def write_words(self, machine_boot: str, words: dict[int, LastWord]) -> None:
        document = Words(machine_boot=machine_boot, words=words)
        replace_file(self.words_file, msgspec.json.encode(document), mode=0o600, is_durable=False)

    def token(self) -> str:
        """The secret that sidecars ask for; made when there is none."""
        if not self.token_file.exists():
            replace_file(self.token_file, f"console:{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), mode=0o600)
        try:
            return first_token(self.token_file.read_text(encoding="utf-8"))
        except ValueError as error:
            remedy = "remove it: another one is made at the next start"
            raise CliError(f"{self.token_file} is damaged: {error}", remedy) from error


@final
class Words(msgspec.Struct, kw_only=True):
    """As they are written."""

    machine_boot: str
    words: dict[int, LastWord]


# -- what people ask of the group --------------------------------------------------------------------------------------
# What people ask of a local group: the annotations in its folder, read at every look, cleared when they are obeyed.
#
# What was fenced stays fenced, whoever mistypes what: of annotations that cannot all be understood the states stand, as
# in a cluster, and while the file itself is damaged what stood last. A supervisor that has never read it knows of no
# fence and must not guess that there is none, so its group is paused until somebody has mended the file.


@final
class StandingOrders:
    """Of one supervisor."""

    def __init__(self, state: GroupState, tell: Callable[[str], None]) -> None:
        self._state: Final = state
        self._tell: Final = tell
        self._trouble = ""
        self._standing = Wanted(is_paused=True)
        """What holds while the file is damaged."""

    def read(self) -> Wanted:
        """What is asked for. Orders that nobody can read are told once, and ask for nothing; what stands goes on."""
        try:
            annotations = self._state.read_annotations()
        except CliError as error:
            self._complain(str(error))
            return self._standing
        self._standing = standing(annotations)
        found, complaint = asked(annotations)
        self._complain(complaint)
        return found

    def _complain(self, text: str) -> None:
        if text and text != self._trouble:
            self._tell(f"orders that nobody can read: {text}")
        self._trouble = text

    def clear(self, wish: str) -> None:
        """Take an obeyed order off; with the last one goes what it accepted. Raises CliError and OSError."""
        with self._state.editing():
            annotations = self._state.read_annotations()
            change = without_request(annotations, wish)
            if change:
                merged = annotations | change
                self._state.write_annotations({name: text for name, text in merged.items() if text is not None})


# -- names of members --------------------------------------------------------------------------------------------------
# What the members of a local group are called: by shard, and by who had which role first.
#
#     member 1 of shard 0   master-0        (also ``0/1``)
#     member 2              slave-0-1       ``0/2``
#     member 3              slave-0-2       ``0/3``
#
# A name stays with its broker when the role moves, as a pod's name does.


_NAMES: Final = re.compile(
    r"master-(?P<m>\d{1,3})|slave-(?P<s>\d{1,3})-(?P<n>\d{1,2})|(?P<shard>\d{1,3})/(?P<own>\d{1,2})"
)


def member_name(shard: int, number: int) -> str:
    """Of the broker with this number."""
    return f"master-{shard}" if number == 1 else f"slave-{shard}-{number - 1}"


def parse_member(text: str) -> tuple[int, int] | None:
    """Shard and number; None for what is no name of a member."""
    match = _NAMES.fullmatch(text)
    if match is None:
        return None
    if match["m"] is not None:
        return int(match["m"]), 1
    if match["s"] is not None:
        return int(match["s"]), int(match["n"]) + 1
    return int(match["shard"]), int(match["own"])


# -- files that are whole ----------------------------------------------------------------------------------------------
# Files of JSON are replaced as a whole, and a damaged one is an error with a remedy.


T = TypeVar("T")


def read_whole(path: Path, kind: type[T], remedy: str) -> T | None:
    """What stands in a file of JSON; None if there is none. Raises CliError with ``remedy`` if it is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}", remedy) from error
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CliError(f"{path} is damaged: {error}", remedy) from error


# -- the clock ---------------------------------------------------------------------------------------------------------
# The one clock of a local group: the machine's boot-time clock, which goes on while the machine sleeps.


def now_ms() -> int:
    """Brokers use the same one for grants and Leases, so that moments can be compared."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@cache
def machine_boot() -> str:
    """Another one after each boot, when the clock begins anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
