"""Every attack with its target, the guard that limits it, and its budget in bytes.

A guard is a setting that limits what peers can make a server keep. Each attack that a setting bounds has a twin in
which this guard is off (a limit of 2^40, which it never reaches): a bound that holds without its guard would prove
nothing. A flood is judged by how much of it is served for each answer of the honest client, which counts turns of the
event loop and not time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from abuse.victim import MIB, Victim, broker_victim, name_server_victim

from gantry_testing.accounts import write_accounts

LIMIT_OFF: Final = str(1 << 40)
"""The value of a limit that is never reached."""
SLACK_BYTES: Final = 40 * MIB
"""Beside a budget: connections themselves, one frame copied while it is handled, the honest client, and the heap."""
WRITES_OF_TURN_BYTES: Final = 24 * MIB
"""Beside the budget of replies: what one turn of the event loop writes, and one reply of 8 MiB while it is built."""
UNREAD_REPLIES_BYTES: Final = 5 * MIB // 2
"""What one connection may cost whose small replies are not read: the replies at which it is paused, those of one more
turn, and the requests of one read."""
READ_BYTES: Final = 256 * 1024
"""One read of the event loop, which may be kept for a later turn."""
HANDSHAKE_BYTES: Final = 256 * 1024
"""What an unfinished TLS handshake may cost, most of it OpenSSL's; 256 of them are kept."""

Build = Callable[[Path, Mapping[str, str]], Victim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An attack with its target, its options and its budget."""

    name: str
    about: str
    """What the attack does, for `--list`."""
    kind: str
    """What each connection does: a key of `attacker.KINDS`."""
    options: Mapping[str, Any]
    """The options of the attacker for this kind."""
    build: Build = broker_victim
    """The function that creates the server."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the server beside its guard."""
    guard: Mapping[str, str] = field(default_factory=dict)
    """The settings that bound it: their defaults, or smaller. LIMIT_OFF keeps another guard from acting first."""
    is_guard_optional: bool = True
    """Whether settings can switch the guard off; what is bounded by its design has no twin."""
    budget_bytes: int = 0
    """What the guard allows, without slack."""
    slack_bytes: int = SLACK_BYTES
    """What memory may grow by beside the budget."""
    log_bytes_max: int = 256 * 1024
    """What the server may log during the attack."""
    flood_bytes_per_answer_max: int | None = None
    """How many bytes of the attack may be sent for each answer that the honest client gets; None: not judged."""
    files_left_max: int = 2
    """Open files that the attack may leave: more where it stores messages, whose log and index files stay open."""
    requests_max: int = 1 << 30
    """Requests of the honest client, where the attack must last as long as they do."""

    @property
    def growth_max(self) -> int:
        """The allowed growth: a budget is enforced only after an excess of an eighth."""
        return self.budget_bytes * 9 // 8 + self.slack_bytes

    def victim(self, directory: Path, *, is_guarded: bool = True) -> Victim:
        """Return a fresh server that is not started yet, with its guard or without."""
        guard = self.guard if is_guarded else dict.fromkeys(self.guard, LIMIT_OFF)
        return self.build(directory, {**self.settings, **guard})


def guarded_broker(directory: Path, settings: Mapping[str, str]) -> Victim:
    """Return a broker with access control; the honest client signs as an administrator."""
    accounts = write_accounts(directory / "plain_acl.yml")
    return broker_victim(
        directory, {"aclEnable": "true", "aclFile": str(accounts), "haListenPort": "-1", **settings}, is_signed=True
    )


def loaded_broker(directory: Path, settings: Mapping[str, str]) -> Victim:
    """Return a broker with 16 messages of 1 MiB, which pulls may ask for."""
    return broker_victim(directory, settings, large_messages=16)


def replication_port(directory: Path, settings: Mapping[str, str]) -> Victim:
    """Return a master that is attacked at its replication port."""
    return broker_victim(directory, settings, port_key="haListenPort")


def encrypted_broker(directory: Path, settings: Mapping[str, str]) -> Victim:
    """Return a broker with a certificate; the honest client uses plain text."""
    import trustme

    from gantry_testing.certificates import Party

    party = Party(directory / "tls", trustme.CA())
    return broker_victim(
        directory, {"tlsServerCertPath": str(party.chain), "tlsServerKeyPath": str(party.key), **settings}
    )


REPLICATION_TABLE: Final = (b"\xffGANTRY\x01" + (60 * MIB).to_bytes(4, "big") + bytes([18, 0, 0, 0]) + bytes(4)).hex()
"""The preamble, and the head of a TABLE of 60 MiB, which only a master may send."""


def scenarios(scale: float = 1.0) -> list[Scenario]:
    """Return all scenarios. `scale` 1 is the size of `make abuse`; tests use less, with smaller budgets."""

    def times(count: int) -> int:
        return max(1, round(count * scale))

    is_full = scale >= 1
    frame = (16 if is_full else 4) * MIB
    part = 7 * MIB if is_full else 3 * MIB
    limits = {} if is_full else {"maxMessageSize": str(2 * MIB), "frameMaxLength": str(4 * MIB)}
    frames = 128 * MIB if is_full else 16 * MIB
    first = 5 * MIB if is_full else 3 * MIB
    unauthenticated = 32 * MIB if is_full else 8 * MIB
    replies = 256 * MIB if is_full else 32 * MIB
    handshakes = min(256, times(600)) * HANDSHAKE_BYTES
    bursts = 400 if is_full else 300
    half = {"connections": times(100 if is_full else 200), "frame_bytes": frame, "part_bytes": part}
    return [
        Scenario(
            name="half-frames", about="a part of a large frame on each connection, again when closed for it",
            kind="incomplete_frame", options=half, settings=limits,
            guard={"maxUnfinishedFrameBytes": str(frames)}, budget_bytes=frames,
        ),
        Scenario(
            name="half-frames-acl", about="the same from peers that have not authenticated, with aclEnable=true",
            kind="incomplete_frame", build=guarded_broker, settings=limits,
            options={"connections": times(200), "frame_bytes": first - 1000, "part_bytes": first - MIB},
            guard={"maxUnauthenticatedFrameBytes": str(unauthenticated), "maxUnfinishedFrameBytes": LIMIT_OFF},
            budget_bytes=unauthenticated,
        ),
        Scenario(
            name="half-frames-tls", about="half frames behind a TLS handshake",
            kind="incomplete_tls_frame", options=half, build=encrypted_broker, settings=limits,
            guard={"maxUnfinishedFrameBytes": str(frames)}, budget_bytes=frames,
            slack_bytes=SLACK_BYTES + half["connections"] * READ_BYTES,  # the buffer of a TLS connection that is read
        ),
        Scenario(
            name="half-frames-nameserver", about="half frames at a name server",
            kind="incomplete_frame", build=name_server_victim,
            options={"connections": times(100), "frame_bytes": 16 * MIB, "part_bytes": 7 * MIB},
            guard={"maxUnfinishedFrameBytes": str(128 * MIB if is_full else 32 * MIB)},
            budget_bytes=128 * MIB if is_full else 32 * MIB,
        ),
        Scenario(
            name="half-frames-replication", about="the head of a table of 60 MiB at the replication port, and a part",
            kind="incomplete_frame", build=replication_port, is_guard_optional=False,
            options={"connections": times(60), "part_bytes": 8 * MIB, "head": REPLICATION_TABLE},
        ),
        Scenario(
            name="non-readers", about="pulls of 8 MiB each that are never read",
            kind="unread_replies", build=loaded_broker,
            options={"connections": times(200), "requests": 20, "request": "pull", "reply_bytes": 8 * MIB},
            guard={"maxUnreadReplyBytes": str(replies)}, budget_bytes=replies,
            slack_bytes=SLACK_BYTES + WRITES_OF_TURN_BYTES,
        ),
        Scenario(
            name="pipelining", about="100,000 small requests on each connection, and no reply is ever read",
            kind="unread_replies", is_guard_optional=False,
            options={"connections": times(10), "requests": times(100_000), "request": "code", "code": 9999},
            budget_bytes=times(10) * UNREAD_REPLIES_BYTES,
        ),
        Scenario(
            name="deferred-answers", about="requests of code 306 on one connection, whose answers come later",
            kind="unread_replies",
            options={"connections": 1, "requests": max(60_000, times(100_000)), "request": "code", "code": 306},
            guard={"maxDeferredAnswers": "1024", "maxDeferredAnswersPerConnection": "64"},
            # Each request is an administrator's write, with its audit line.
            budget_bytes=UNREAD_REPLIES_BYTES, log_bytes_max=40 * MIB,
        ),
        Scenario(
            name="many-bursts", about="bursts of 120 KiB of sends on very many connections, each answered",
            kind="flood",
            options={"connections": bursts, "burst_bytes": 120 * 1024, "attempts": 30},
            guard={"maxReadBytesPerTurn": str(MIB)}, budget_bytes=bursts * READ_BYTES,
            # How much arrives between two answers depends on who gets a core: it is judged on a quiet machine only.
            # The bytes of each turn, with and without the guard, are counted by test_remoting_turns.py.
            flood_bytes_per_answer_max=6 * MIB if is_full else None, is_guard_optional=is_full,
            requests_max=40, files_left_max=200,
        ),
        Scenario(
            name="held-pulls", about="held pulls that every message of the honest client answers, never read",
            kind="unread_replies", is_guard_optional=False,
            options={"connections": times(20), "requests": times(1000), "request": "held"},
        ),
        Scenario(
            name="resets", about="connections that are reset at once or in a frame", kind="reset",
            is_guard_optional=False, options={"connections": 20, "attempts": times(1000)},
        ),
        Scenario(
            name="header-bombs", about="headers nested 400,000 deep, with 60,000 fields, with wrong lengths",
            kind="expensive_frame", is_guard_optional=False, options={"connections": 4, "attempts": times(50)},
        ),
        Scenario(
            name="slow-handshakes", about="TLS handshakes whose first message is long and never ends",
            kind="incomplete_handshake", build=encrypted_broker, is_guard_optional=False,
            options={"connections": times(600), "hello_bytes": 60_000, "attempts": 1}, budget_bytes=handshakes,
        ),
    ]  # fmt: skip
