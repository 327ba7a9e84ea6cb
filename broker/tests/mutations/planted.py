"""All hand-made faults, by part of the product.

``run_mutations.py`` applies one at a time to a copy of the tree and runs the tests there, or with ``suites`` each suite
that should see the fault; ``test_mutations.py`` checks that each still fits its file.
"""

from __future__ import annotations

from typing import Final

from mutations.faults_of_access import ACCESS, CLIENT, COMMAND_LINE, NAME_SERVER, PROXY
from mutations.faults_of_control import ELECTION, OPERATOR, PIPELINES, SIDECAR
from mutations.faults_of_replication import REPLICATION
from mutations.faults_of_services import CONSUMPTION, DELAYS, TRANSACTION
from mutations.faults_of_store import STORE, WIRE
from mutations.planted_fault import Fault

PARTS: Final[dict[str, tuple[Fault, ...]]] = {
    "wire format": WIRE,
    "store": STORE,
    "replication": REPLICATION,
    "delays and timers": DELAYS,
    "transactions": TRANSACTION,
    "consumption": CONSUMPTION,
    "client library": CLIENT,
    "name server": NAME_SERVER,
    "access control": ACCESS,
    "proxy": PROXY,
    "command line": COMMAND_LINE,
    "elections": ELECTION,
    "operator": OPERATOR,
    "sidecar": SIDECAR,
    "pipelines": PIPELINES,
}
"""The faults of each part of the product."""

FAULTS: Final = tuple(fault for faults in PARTS.values() for fault in faults)
"""All hand-made faults."""
