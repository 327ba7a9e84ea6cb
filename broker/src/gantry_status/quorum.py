"""The arithmetic of quorums: how many slaves must take part in an election so that no acknowledged message is lost."""


def intersecting(slaves: int, acks: int) -> int:
    """Return the smallest number of slaves that always include one of any ``acks`` of them: S - k + 1."""
    return slaves - acks + 1
