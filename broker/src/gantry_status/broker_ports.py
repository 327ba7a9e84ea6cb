"""The ports of a broker, as RocketMQ's clients and slaves derive them from one another.

10909  fast port         clients with a VIP channel connect to it
10911  broker's port     the only one that name servers list
10912  replication port  slaves connect to it
"""

from typing import Final

BROKER_PORT: Final = 10911
"""RocketMQ's default port of a broker."""
PORT_END: Final = 65_536
"""One more than the highest port number."""


def fast_port_of(port: int) -> int:
    """Return the fast port of a broker whose settings name none. It may be 0 or less: then there is no fast port."""
    return port - 2


def replication_port_of(port: int) -> int:
    """Return the replication port of a broker whose settings name none. It may be `PORT_END`: then there is none."""
    return port + 1


def broker_port_of(replication_port: int) -> int:
    """Return the port of a broker of which only the replication port is known, by default."""
    return replication_port - 1
