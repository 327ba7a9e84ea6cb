"""Orders of people, taken off the group when they are done: just what was read, from the version it stood in."""

from __future__ import annotations

from typing import Any

from gantry_operator.api import Kubernetes, Object, place_of, revision_of, uid_of
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, REPLACE_DISK, RESTORE, RESTORING, without


def cleared(annotations: dict[str, str], wish: str) -> dict[str, Any]:
    """The change that takes an order off. With the last promotion goes what they were allowed to lose."""
    if wish.startswith(RESTORING):
        text = annotations.get(RESTORE, "")
        rest = without(text, wish.removeprefix(RESTORING))
        return {} if rest == text else {RESTORE: rest or None}
    text = annotations.get(PROMOTE, "")
    rest = without(text, wish)
    if rest == text:
        return {}
    return {PROMOTE: rest} if rest else {PROMOTE: None, ACCEPT_LOSS: None}


def replaced(annotations: dict[str, str], shard: int, member: int) -> dict[str, Any]:
    """The same for a disk that has been given up."""
    text = annotations.get(REPLACE_DISK, "")
    rest = without(text, f"{shard}/{member}")
    return {} if rest == text else {REPLACE_DISK: rest or None}


async def take_off(api: Kubernetes, document: Object, change: dict[str, Any]) -> Object:
    """Raises ``Conflict`` when somebody has changed the group since: then it is read again first."""
    if not change:
        return document
    patch = {"metadata": {"annotations": change}}
    return await api.patch(place_of(document), patch, uid=uid_of(document), revision=revision_of(document))
