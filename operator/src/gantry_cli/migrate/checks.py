"""The preconditions of a migration: pure checks of facts that were gathered before anything is changed.

A finding has one of three severities. BLOCKED: the migration would fail or lose messages. WARNING: something is not
migrated or needs an action of the user, who must confirm it. FINE: information.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gantry_cli.migrate.source import BrokerRegistration, SourceLog
from gantry_status.text import bytes_text

VERSION: Final = re.compile(r"V(\d+)_(\d+)_(\d+)")
"""The version in RocketMQ's brokerVersionDesc, for example `V5_3_3`."""
VERSION_MIN: Final = (4, 9)
VERSION_MAX: Final = (5, 99)
NAME_SERVER_VERSION_MIN: Final = 413
"""RocketMQ 5.0.0: older name servers change the route back to the broker that registered last."""
ACCESS_CONTROL_KEYS: Final = ("aclEnable", "authenticationEnabled", "authorizationEnabled")
"""The settings that enable access control in RocketMQ 4 and 5; clients sign requests for both in the same way."""
SPARE_RATIO: Final = 1.1
"""The space to reserve per byte to copy: it includes queues, the index, and the log's growth during the copy."""
SPARE_BYTES: Final = 1 << 30
"""The space to reserve in addition: one log file of the default size."""


class Severity(StrEnum):
    """The severity of a finding."""

    FINE = "fine"
    WARNING = "warning"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, with a remedy."""

    kind: Severity
    what: str
    """The result as text for people."""

    remedy: str = ""
    """What the user can do; empty if there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFacts:
    """The facts about the source broker, its name servers and this machine that the checks use."""

    version: str
    """RocketMQ's version text of the source broker."""
    config: Mapping[str, str]
    """The settings of the source broker in effect."""
    log: SourceLog
    """The range of the source broker's log."""
    replication_address: str
    """The replication address of the source broker."""
    replication_failure: str = ""
    """Why the replication port of the source broker cannot be reached; empty if it can."""
    half_messages_open_max: int = 0
    """How many half messages may be neither committed nor rolled back."""
    timer_messages: int = 0
    """The number of messages in the timer wheel, which the new broker delivers."""
    pop_groups: Sequence[str] = ()
    """The consumer groups that consume by pop, whose receipts the new broker does not know."""
    batch_topics: Sequence[str] = ()
    """The topics with batch consume queues, whose batches are stored as one record each."""
    registrations: Sequence[BrokerRegistration] = ()
    """The brokers of this name at each name server."""
    old_address: str = ""
    """The address of the source broker for clients."""
    ports_taken: Sequence[int] = ()
    """The ports of the new broker on which another process listens."""
    free_bytes: int = 0
    """The free disk space in the folder of the new broker."""
    copied_bytes: int = 0
    """The size of the log that an earlier run has copied."""
    copied_file_bytes: int | None = None
    """The file size of a log that an earlier run has copied."""
    target_broker_id: int = 1
    """The brokerId with which the new broker registers as a slave."""
    has_credentials: bool = False
    """Whether this command has credentials."""
    target_conf: Mapping[str, str] = field(default_factory=dict)
    """The settings of the new broker, from its broker.conf or as they would be written."""


def check_migration(facts: MigrationFacts) -> list[Finding]:
    """Run all checks and return the findings, the most severe first."""
    found = [
        *_check_versions(facts),
        *_check_modes(facts),
        *_check_files_and_space(facts),
        *_check_addresses(facts),
        *_check_data_left_behind(facts),
        *_check_registrations(facts),
    ]
    order = (Severity.BLOCKED, Severity.WARNING, Severity.FINE)
    return sorted(found, key=lambda one: order.index(one.kind))


def _check_versions(facts: MigrationFacts) -> Iterator[Finding]:
    match = VERSION.search(facts.version)
    version = tuple(int(part) for part in match.groups()) if match else ()
    if not version or not VERSION_MIN <= version[:2] <= VERSION_MAX:
        text = f"the old broker reports version {facts.version or 'unknown'}; supported are RocketMQ 4.9 and 5"
        yield Finding(Severity.BLOCKED, text, "upgrade it to RocketMQ 4.9 or 5 first")
    else:
        yield Finding(Severity.FINE, f"the old broker is RocketMQ {'.'.join(map(str, version))}")
    for one in facts.registrations:
        if one.version < NAME_SERVER_VERSION_MIN:
            text = (
                f"name server {one.address} is older than RocketMQ 5 and would change the route back to the old broker"
            )
            yield Finding(
                Severity.BLOCKED, text, "replace it first with one of RocketMQ 5, or with `gantry nameserver`"
            )


def _check_modes(facts: MigrationFacts) -> Iterator[Finding]:
    on = {key for key, value in facts.config.items() if value.lower() == "true"}
    for key, what in (
        ("enableControllerMode", "its replication protocol, which a controller manages, is not supported"),
        ("enableDLegerCommitLog", "only members of its DLedger group can replicate its log"),
        ("duplicationEnable", "it accepts messages even as a slave, so its writes cannot be stopped"),
    ):
        if key in on:
            yield Finding(Severity.BLOCKED, f"{key}=true: {what}", "if possible, disable it during the migration")
    if "transRocksDBEnable" in on and facts.config.get("transWriteOriginTransHalfEnable", "").lower() == "false":
        text = "transWriteOriginTransHalfEnable=false: open transactions are only in RocksDB, which is not migrated"
        yield Finding(Severity.BLOCKED, text, "set it to true, and wait until the open transactions have ended")
    yield from _check_access_control(facts, [key for key in ACCESS_CONTROL_KEYS if key in on])
    role = facts.config.get("brokerRole", "")
    if role not in ("ASYNC_MASTER", "SYNC_MASTER"):
        yield Finding(
            Severity.BLOCKED,
            f"the old broker is not a master: brokerRole={role or '?'}",
            "set the master with --broker",
        )
    else:
        yield Finding(
            Severity.FINE, f"the old broker is {role}, with flushDiskType={facts.config.get('flushDiskType', '?')}"
        )
    if facts.config.get("messageStorePlugIn"):
        text = (
            f"messageStorePlugIn={facts.config['messageStorePlugIn']}: data that only this storage has is not migrated"
        )
        yield Finding(Severity.WARNING, text)
    for key, what in (
        ("enableLmq", "light message queues are not supported"),
        ("enableMultiDispatch", "messages are stored in their own topic only"),
        ("timerRocksDBEnable", "timers in RocksDB are not migrated, and not counted here"),
        ("popConsumerKVServiceEnable", "messages that are popped and not acked are in RocksDB, and are not migrated"),
    ):
        if key in on:
            yield Finding(Severity.WARNING, f"{key}=true: {what}")


def _check_access_control(facts: MigrationFacts, keys: Sequence[str]) -> Iterator[Finding]:
    """Check the accounts and the access control of the new broker, if the old broker has access control."""
    if not keys:
        return
    required = f"{keys[0]}=true: the old broker requires signed requests"
    if not facts.has_credentials:
        yield Finding(
            Severity.BLOCKED, f"{required}, and `gantry migrate` has no account",
            "gantry --credentials FILE migrate, with an administrator account of that broker",
        )  # fmt: skip
    if not facts.target_conf.get("aclCredentialsPath"):
        yield Finding(
            Severity.BLOCKED,
            f"{required}, and the new broker has no account for replication",
            "-o aclCredentialsPath=FILE",
        )
    is_enabled = facts.target_conf.get("aclEnable", "")
    if facts.target_conf.get("authenticationEnabled", "").lower() == "true":
        yield Finding(Severity.FINE, "the new broker stores users, which mqadmin copyUser and copyAcl copy to it")
    elif not is_enabled:
        yield Finding(
            Severity.BLOCKED, f"{keys[0]}=true: with its present settings the new broker would have no access control",
            "-o aclEnable=true -o aclFile=PLAIN_ACL_YML (or -o authenticationEnabled=true), and haSecretPath or "
            "haListenPort=-1; or -o aclEnable=false",
        )  # fmt: skip
    elif is_enabled.lower() == "true":
        yield Finding(Severity.FINE, f"the new broker uses the accounts in {facts.target_conf.get('aclFile', '?')}")
    else:
        yield Finding(
            Severity.WARNING,
            f"the old broker has {keys[0]}=true, the new one aclEnable={is_enabled}: "
            "the new broker will have no access control",
        )


def _check_files_and_space(facts: MigrationFacts) -> Iterator[Finding]:
    size = facts.config.get("mappedFileSizeCommitLog", "")
    if not size.isdigit():
        yield Finding(Severity.BLOCKED, "the old broker does not report its mappedFileSizeCommitLog")
    elif facts.copied_file_bytes not in (None, int(size)):
        text = f"the log in --data has files of {facts.copied_file_bytes} bytes, the old broker's have {size}"
        yield Finding(Severity.BLOCKED, f"mappedFileSizeCommitLog: {text}", "use an empty --data")
    elif facts.log.begin % int(size):
        yield Finding(
            Severity.BLOCKED, f"the old log begins at {facts.log.begin}, not at a multiple of its file size {size}"
        )
    else:
        yield Finding(Severity.FINE, f"mappedFileSizeCommitLog={size} on both brokers")
    log = facts.log.end - facts.log.begin
    needed = int(max(0, log - facts.copied_bytes) * SPARE_RATIO) + SPARE_BYTES
    space = f"{bytes_text(log)} to copy, {bytes_text(facts.copied_bytes)} copied, {bytes_text(facts.free_bytes)} free"
    if facts.free_bytes < needed:
        yield Finding(
            Severity.BLOCKED, f"not enough disk space: {space}", f"free {bytes_text(needed)}, or use another --data"
        )
    else:
        yield Finding(Severity.FINE, space)


def _check_addresses(facts: MigrationFacts) -> Iterator[Finding]:
    if facts.replication_failure:
        text = f"the replication port at {facts.replication_address} cannot be reached: {facts.replication_failure}"
        yield Finding(
            Severity.BLOCKED, text, "open the port to this machine; see brokerIP2 and haListenPort of the old broker"
        )
    else:
        yield Finding(Severity.FINE, f"the replication port at {facts.replication_address} can be reached")
    for port in facts.ports_taken:
        yield Finding(Severity.BLOCKED, f"port {port} is in use on this machine", "set other ports with --port")


def _check_data_left_behind(facts: MigrationFacts) -> Iterator[Finding]:
    if facts.timer_messages:
        count = facts.timer_messages
        text = f"{count} messages wait in the timer wheel; they are migrated, and the new broker delivers them"
        yield Finding(Severity.FINE, text)
    if facts.half_messages_open_max:
        text = (
            f"up to {facts.half_messages_open_max} transactional messages are neither committed nor rolled back: they "
            "are migrated, and the new broker checks them with their producers"
        )
        yield Finding(Severity.WARNING, text, "keep their producers running, or wait for the checks before the switch")
    if facts.pop_groups:
        groups = ", ".join(facts.pop_groups[:10])
        yield Finding(
            Severity.WARNING,
            "messages that are popped and not acked at the switch are delivered again when their time is over, because "
            f"the new broker does not know their receipts; affected groups: {groups}",
            "let the consumers of these groups finish before the switch, if a second delivery is a problem",
        )
    if facts.batch_topics:
        topics = ", ".join(facts.batch_topics[:10])
        text = (
            f"stored batches of these topics are one record each (queue.type=BatchCQ): {topics}; Java clients from 5.0 "
            "on and Gantry's clients read them, other clients and Spark do not"
        )
        yield Finding(Severity.WARNING, text, "let other clients read these topics to their ends before the switch")


def _check_registrations(facts: MigrationFacts) -> Iterator[Finding]:
    for one in facts.registrations:
        if one.brokers.get(0) != facts.old_address:
            text = f"name server {one.address} has {one.brokers.get(0, 'none')} as the master, not {facts.old_address}"
            yield Finding(
                Severity.BLOCKED, text, "set all name servers of the old broker with -n, and check its registrations"
            )
    slaves = {
        address
        for one in facts.registrations
        for number, address in one.brokers.items()
        if number not in (0, facts.target_broker_id)
    }
    if slaves:
        text = f"slaves of the old broker: {', '.join(sorted(slaves))}; they will use the new broker as their master"
        yield Finding(Severity.WARNING, text, "stop them, or let them follow the new broker: haClassicPeers=true")
    if len({one.cluster for one in facts.registrations if one.cluster}) > 1:
        yield Finding(Severity.BLOCKED, "the name servers disagree on the cluster of the old broker")
