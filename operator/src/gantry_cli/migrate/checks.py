"""What could go wrong with a migration, found before anything is changed: a pure look at what was asked.

Three kinds of finding. What is blocked would fail, or lose messages. A warning is what does not come along, or what
somebody has to do; whoever goes on has read it. All else is a fact worth a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gantry_cli.migrate.source import Listing, SourceLog
from gantry_cli.text import bytes_text

VERSION: Final = re.compile(r"V(\d+)_(\d+)_(\d+)")
OLDEST: Final = (4, 9)
NEWEST: Final = (5, 99)
NAME_SERVER_VERSION_MIN: Final = 413
"""RocketMQ 5.0.0: older name servers give the route back to whoever registered last."""
SIGNED_FOR: Final = ("aclEnable", "authenticationEnabled", "authorizationEnabled")
"""Settings of RocketMQ 4 and 5 with which it asks for accounts; clients sign for both in the same way."""
SPARE_RATIO: Final = 1.1
"""Queues and indexes take room, too; and the log grows while it is copied."""
SPARE_BYTES: Final = 1 << 30


class Kind(StrEnum):
    """How bad."""

    FINE = "fine"
    WARNING = "warning"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    kind: Kind
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was asked, of the old broker, its name servers, and this machine."""

    version: str
    config: Mapping[str, str]
    log: SourceLog
    stream: str
    stream_failure: str = ""
    """Why its replication port cannot be reached."""
    halves: int = 0
    halves_open: int = 0
    timers: int = 0
    popping: Sequence[str] = ()
    listings: Sequence[Listing] = ()
    old_address: str = ""
    ports_taken: Sequence[int] = ()
    free_bytes: int = 0
    copied_bytes: int = 0
    """What of the log is here already."""
    own_file_bytes: int | None = None
    """The size of the files of a log that is here already."""
    own_id: int = 1
    is_signing: bool = False
    """Whether this command has an account."""
    own_conf: Mapping[str, str] = field(default_factory=dict)
    """Our broker's settings as they are or would be."""


def findings(seen: Seen) -> list[Finding]:
    """Everything that was looked at, the worst first."""
    found = [*_versions(seen), *_modes(seen), *_files(seen), *_places(seen), *_left_behind(seen), *_neighbours(seen)]
    order = (Kind.BLOCKED, Kind.WARNING, Kind.FINE)
    return sorted(found, key=lambda one: order.index(one.kind))


def _versions(seen: Seen) -> Iterator[Finding]:
    match = VERSION.search(seen.version)
    version = tuple(int(part) for part in match.groups()) if match else ()
    if not version or not OLDEST <= version[:2] <= NEWEST:
        text = f"the old broker says that it is {seen.version or 'nothing'}; known are RocketMQ 4.9 and 5"
        yield Finding(Kind.BLOCKED, text, "bring it to 4.9.8 or 5.3.3 first")
    else:
        yield Finding(Kind.FINE, f"the old broker is RocketMQ {'.'.join(map(str, version))}")
    for one in seen.listings:
        if one.version < NAME_SERVER_VERSION_MIN:
            text = f"name server {one.address} is older than RocketMQ 5 and would give the route back to the old broker"
            yield Finding(Kind.BLOCKED, text, "replace it first: with RocketMQ 5's, or with `gantry nameserver`")


def _modes(seen: Seen) -> Iterator[Finding]:
    on = {key for key, value in seen.config.items() if value.lower() == "true"}
    for key, what in (
        ("enableControllerMode", "its master is chosen by a controller, whose stream is another one"),
        ("enableDLegerCommitLog", "its log is DLedger's, which nobody outside it can follow"),
        ("duplicationEnable", "it appends even as a slave, so it cannot be stopped"),
    ):
        if key in on:
            yield Finding(
                Kind.BLOCKED, f"{key}=true: {what}", "switch it off for the time of the migration, if you can"
            )
    yield from _access(seen, [key for key in SIGNED_FOR if key in on])
    role = seen.config.get("brokerRole", "")
    if role not in ("ASYNC_MASTER", "SYNC_MASTER"):
        yield Finding(Kind.BLOCKED, f"the old broker is no master: brokerRole={role or '?'}", "name the master")
    else:
        yield Finding(Kind.FINE, f"it is {role}, with flushDiskType={seen.config.get('flushDiskType', '?')}")
    if seen.config.get("messageStorePlugIn"):
        text = f"messageStorePlugIn={seen.config['messageStorePlugIn']}: what only that storage has does not come along"
        yield Finding(Kind.WARNING, text)
    for key, what in (
        ("enableLmq", "light message queues are not here"),
        ("enableMultiDispatch", "messages of several queues are in their own topic only"),
    ):
        if key in on:
            yield Finding(Kind.WARNING, f"{key}=true: {what}")


def _access(seen: Seen, keys: Sequence[str]) -> Iterator[Finding]:
    """Where the old broker asks for accounts this command needs one, our broker needs one, and ours must ask, too."""
    if not keys:
        return
    asks = f"{keys[0]}=true: the old broker takes orders only with a signature"
    if not seen.is_signing:
        yield Finding(
            Kind.BLOCKED, f"{asks}, and `gantry migrate` has no account",
            "gantry --credentials FILE migrate, with an administrator's account of that broker",
        )  # fmt: skip
    if not seen.own_conf.get("aclCredentialsPath"):
        yield Finding(
            Kind.BLOCKED, f"{asks}, and our broker has no account to follow it with", "-o aclCredentialsPath=FILE"
        )
    own = seen.own_conf.get("aclEnable", "")
    if not own:
        yield Finding(
            Kind.BLOCKED, f"{keys[0]}=true: with the settings as they are ours would serve everybody after the switch",
            "-o aclEnable=true -o aclFile=PLAIN_ACL_YML, and haSecretPath or haListenPort=-1; or -o aclEnable=false",
        )  # fmt: skip
    elif own.lower() == "true":
        yield Finding(Kind.FINE, f"ours asks for the accounts in {seen.own_conf.get('aclFile', '?')}")
    else:
        yield Finding(Kind.WARNING, f"{keys[0]}=true there, aclEnable={own} here: ours will serve everybody")


def _files(seen: Seen) -> Iterator[Finding]:
    size = seen.config.get("mappedFileSizeCommitLog", "")
    if not size.isdigit():
        yield Finding(Kind.BLOCKED, "the old broker does not say its mappedFileSizeCommitLog")
    elif seen.own_file_bytes not in (None, int(size)):
        text = f"the log that is here has files of {seen.own_file_bytes} bytes, the old broker's have {size}"
        yield Finding(Kind.BLOCKED, f"mappedFileSizeCommitLog: {text}", "take an empty --data")
    elif seen.log.begin % int(size):
        yield Finding(Kind.BLOCKED, f"its log begins at {seen.log.begin}, where no file of {size} bytes does")
    else:
        yield Finding(Kind.FINE, f"mappedFileSizeCommitLog={size}, here as there")
    log = seen.log.end - seen.log.begin
    needed = int(max(0, log - seen.copied_bytes) * SPARE_RATIO) + SPARE_BYTES
    room = f"{bytes_text(log)} to copy, {bytes_text(seen.copied_bytes)} of it here, {bytes_text(seen.free_bytes)} free"
    if seen.free_bytes < needed:
        yield Finding(
            Kind.BLOCKED, f"too little room: {room}", f"make {bytes_text(needed)} free, or take another --data"
        )
    else:
        yield Finding(Kind.FINE, room)


def _places(seen: Seen) -> Iterator[Finding]:
    if seen.stream_failure:
        text = f"its replication stream at {seen.stream} cannot be reached: {seen.stream_failure}"
        yield Finding(Kind.BLOCKED, text, "open that port from here; see its brokerIP2 and haListenPort")
    else:
        yield Finding(Kind.FINE, f"its replication stream at {seen.stream} can be reached")
    for port in seen.ports_taken:
        yield Finding(Kind.BLOCKED, f"port {port} is taken on this machine", "choose others with --port")


def _left_behind(seen: Seen) -> Iterator[Finding]:
    if seen.timers:
        text = (
            f"{seen.timers} messages wait in its timer wheel, which does not come along: they are never delivered here"
        )
        yield Finding(Kind.WARNING, text, "wait until they are due; delay levels do come along")
    if seen.halves_open:
        text = (
            f"up to {seen.halves_open} transactional messages are neither committed nor rolled back: they come along, "
            "and their producers are asked here"
        )
        yield Finding(Kind.WARNING, text, "let their producers run on, or wait for its checks before the switch")
    if seen.popping:
        groups = ", ".join(seen.popping[:10])
        yield Finding(
            Kind.WARNING, f"groups that consume by pop are not served here: {groups}", "let them consume by push"
        )


def _neighbours(seen: Seen) -> Iterator[Finding]:
    for one in seen.listings:
        if one.brokers.get(0) != seen.old_address:
            text = (
                f"name server {one.address} knows {one.brokers.get(0, 'nobody')} as the master, not {seen.old_address}"
            )
            yield Finding(Kind.BLOCKED, text, "name all its name servers with -n, and see that it is registered there")
    slaves = {
        address for one in seen.listings for number, address in one.brokers.items() if number not in (0, seen.own_id)
    }
    if slaves:
        text = f"slaves of the old broker: {', '.join(sorted(slaves))}; they will find our broker as their master"
        yield Finding(Kind.WARNING, text, "stop them, or let them follow it: haClassicPeers=true")
    if len({one.cluster for one in seen.listings if one.cluster}) > 1:
        yield Finding(Kind.BLOCKED, "its name servers do not agree on its cluster")
