"""The ports of a group at a Gateway, each a function of the first port, the shard and the member alone.

    first                           the name servers
    first + 10 * (shard + 1)        the master of a shard, whichever member that is
    first + 10 * (shard + 1) + n    member n of the shard, counted from 1: the initial master, then its slaves

TCP has no host names, so every target has a port of its own. The distance between shards is that of a shard with the
most slaves, and the greatest first port leaves room for the most shards. So more slaves or shards never move a port,
and never need one that does not exist.
"""

from __future__ import annotations

from gantry_spec.manifest.parts import PORT_MAX, PORTS_PER_SHARD, SHARDS_MAX, SLAVES_MAX


def name_server_port(first: int) -> int:
    """Return the port of the name servers."""
    return first


def master_port(first: int, shard: int) -> int:
    """Return the port of a shard's master, which does not change when the role moves."""
    assert 0 <= shard < SHARDS_MAX, "no group has so many shards"
    port = first + PORTS_PER_SHARD * (shard + 1)
    assert port <= PORT_MAX, "the greatest first port leaves room for all shards"
    return port


def member_port(first: int, shard: int, member: int) -> int:
    """Return the port of one member of a shard, in any role."""
    assert 1 <= member <= SLAVES_MAX + 1, "no shard has so many members"
    return master_port(first, shard) + member
