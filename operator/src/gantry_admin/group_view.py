"""The group in one picture: own status and the peers', joined by broker name, and the ledger of each shard.

Who is the master is not voted about here: whoever says so in the newest epoch is shown, and two of them are shown as
two, because that is what somebody has to see.
"""

from __future__ import annotations

from gantry_admin.documents import StatusDocument
from gantry_admin.group_documents import GroupDocumentView, MemberDocument, ShardDocument
from gantry_admin.peers import Peers
from gantry_admin.shard_ledgers import ShardLedgers

SELF = "self"


def group_view(own: StatusDocument, peers: Peers, ledgers: ShardLedgers, now_ms: int) -> GroupDocumentView:
    """The group at ``now_ms``, on this machine's clock since boot."""
    members = [MemberDocument(url=SELF, is_self=True, is_reachable=True, age_ms=0, fault=None, status=own)]
    for word in peers.words.values():
        is_reachable = word.fault is None
        members.append(
            MemberDocument(
                url=word.url, is_self=False, is_reachable=is_reachable, age_ms=word.age_ms(), fault=word.fault,
                status=word.status,
            )
        )  # fmt: skip
    return GroupDocumentView(shards=shards_of(members, ledgers, now_ms), members=members)


def shards_of(members: list[MemberDocument], ledgers: ShardLedgers, now_ms: int) -> list[ShardDocument]:
    """By broker name."""
    by_name: dict[str, list[tuple[MemberDocument, StatusDocument]]] = {}
    for member in members:
        if member.status is not None and member.status.broker_name is not None:
            by_name.setdefault(member.status.broker_name, []).append((member, member.status))
    return [_shard(name, found, ledgers, now_ms) for name, found in sorted(by_name.items())]


def _shard(
    name: str, found: list[tuple[MemberDocument, StatusDocument]], ledgers: ShardLedgers, now_ms: int
) -> ShardDocument:
    epochs = [status.epoch for _, status in found if status.epoch is not None]
    newest = max(epochs) if epochs else None
    # The last word of a broker that is gone does not make it a master.
    masters = [
        (member, status) for member, status in found
        if status.role == "master" and member.is_reachable and status.motion.state in ("moving", "standing still")
    ]  # fmt: skip
    current = [(member, status) for member, status in masters if status.epoch == newest]
    leader = current[0][1] if len(current) == 1 else None
    return ShardDocument(
        broker_name=name,
        epoch=newest,
        masters=[member.url for member, _ in current],
        stale_masters=[member.url for member, status in masters if status.epoch != newest],
        members=[member.url for member, _ in found],
        wrote=None if leader is None else leader.wrote,
        confirmed=None if leader is None else leader.confirmed,
        at_risk=[] if leader is None else leader.at_risk,
        ledger=ledgers.look(name, [member for member, _ in current], now_ms),
    )
