"""The names that earlier versions gave to fields of documents which versions exchange or leave on a disk.

During an upgrade, processes of both versions run side by side, and files outlive the version that wrote them. So a
reader takes a former name where the present one is missing, and no writer uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

STATE_NAMES: Final = {"trouble": "problem", "heard_ms": "heartbeat_age_ms", "is_whole": "is_complete"}
"""Fields of a broker's state: the former name, and the present one."""

DRAIN_NAMES: Final = {"goes_on": "clients_only"}
"""Fields of the order to drain."""

LOOP_STATES: Final = {"moving": "running", "standing still": "stalled", "gone": "crashed"}
"""States of a broker's event loop in the documents of a sidecar."""


def with_present_names(document: Any, names: Mapping[str, str], *, depth: int = 1) -> Any:
    """Return a decoded JSON document in which fields with a former name have the present one.

    ``names`` maps former to present names. Where an object has both, the present one counts. Objects and lists that are
    nested more than ``depth`` deep are left as they are, so that no document of a peer can exhaust the stack.
    """
    if depth == 0:
        return document
    if isinstance(document, list):
        return [with_present_names(one, names, depth=depth - 1) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        names.get(name, name): with_present_names(value, names, depth=depth - 1)
        for name, value in document.items()
        if names.get(name) not in document
    }
