"""The arithmetic of quorums: how many slaves must take part in an election so that no acknowledged message is lost."""


def intersecting_quorum(slaves: int, acks: int) -> int:
    """Return how many of ``slaves`` slaves are needed to include at least one of any ``acks`` of them."""
    return slaves - acks + 1
