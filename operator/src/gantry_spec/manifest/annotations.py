"""What a person asks of a running group, beside its spec: annotations, so that `kubectl annotate` is enough.

    gantry.dev/paused: "true"                 nothing is done
    gantry.dev/promote: "0=2"                 shard 0: member 2 shall be the master; "0" leaves it to the election
    gantry.dev/promote: "0=2@tuesday"         the same once more: whatever follows @ makes it another order
    gantry.dev/accept-loss: "64Mi"            that these promotions may lose so much; "any" for whatever it is
    gantry.dev/replace-disk: "0/2"            the lost volume of member 2 of shard 0 will not come back
    gantry.dev/restore: "0"                   shard 0 comes back without its Lease: what no volume has is given up
    gantry.dev/fence: "0,1"                   while it stands, shards 0 and 1 take no sends and get no other master
    gantry.dev/hibernate: "true"              while it stands, no pod runs; volumes stay

Several are joined by commas. An order that was obeyed is taken off again (``ClearRequest``); its whole text is its id.
The last two are states, and are never taken off by us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.group import API_GROUP
from gantry_spec.manifest.quantities import parse_size
from gantry_spec.observed import PromotionRequest

PAUSED: Final = f"{API_GROUP}/paused"
PROMOTE: Final = f"{API_GROUP}/promote"
ACCEPT_LOSS: Final = f"{API_GROUP}/accept-loss"
REPLACE_DISK: Final = f"{API_GROUP}/replace-disk"
RESTORE: Final = f"{API_GROUP}/restore"
FENCE: Final = f"{API_GROUP}/fence"
HIBERNATE: Final = f"{API_GROUP}/hibernate"

RESTORING: Final = "restore "
"""What the id of an order to restore a shard begins with; its number follows."""

_PROMOTE: Final = re.compile(r"(\d{1,3})(?:=(\d{1,3}))?(?:@[-\w:.+]{1,60})?", re.ASCII)
_DISK: Final = re.compile(r"(\d{1,3})/(\d{1,3})", re.ASCII)
_SHARD: Final = re.compile(r"\d{1,3}", re.ASCII)


class Order(NamedTuple):
    """A promotion that somebody wants."""

    id: str
    shard: int
    to: int
    """0 for whoever is best."""

    loss_accepted: int | None
    """None for whatever it is."""


class Wanted(NamedTuple):
    """All that is asked of a group."""

    is_paused: bool = False
    orders: tuple[Order, ...] = ()
    given_up: tuple[tuple[int, int], ...] = ()
    """Shard and member of volumes that will not come back."""

    restored: tuple[int, ...] = ()
    """Shards that come back from the volumes that are there."""

    fenced: tuple[int, ...] = ()
    """Shards that take no sends, and whose master nobody else becomes."""

    is_hibernated: bool = False

    def request(self, shard: int) -> PromotionRequest | None:
        """The promotion that is ordered for a shard."""
        order = next((one for one in self.orders if one.shard == shard), None)
        if order is None:
            return None
        return PromotionRequest(id=order.id, to=order.to or None, loss_accepted=order.loss_accepted)


def wanted(annotations: Mapping[str, str]) -> Wanted:
    """Read them. Raises ``ManifestError``; other annotations are not ours."""
    loss = _loss(annotations.get(ACCEPT_LOSS, "0"))
    orders = []
    for text in _entries(annotations.get(PROMOTE, "")):
        match = _PROMOTE.fullmatch(text)
        if match is None:
            raise _problem(PROMOTE, f'{text!r} is no order: write "0=2" for member 2 of shard 0')
        orders.append(Order(text, int(match[1]), int(match[2] or 0), loss))
    if len({order.shard for order in orders}) < len(orders):
        raise _problem(PROMOTE, "one order for each shard is enough")
    given_up = []
    for text in _entries(annotations.get(REPLACE_DISK, "")):
        match = _DISK.fullmatch(text)
        if match is None:
            raise _problem(REPLACE_DISK, f'{text!r} is no member: write "0/2" for member 2 of shard 0')
        given_up.append((int(match[1]), int(match[2])))
    return Wanted(
        is_paused=_switch(annotations, PAUSED),
        orders=tuple(orders),
        given_up=tuple(given_up),
        restored=tuple(_shards(annotations, RESTORE)),
        fenced=tuple(_shards(annotations, FENCE)),
        is_hibernated=_switch(annotations, HIBERNATE),
    )


def standing(annotations: Mapping[str, str]) -> Wanted:
    """What holds although something else cannot be understood: a typing error lifts no fence and wakes nobody.

    A pause that is misspelled is one, since nothing can go wrong by it; a hibernation that is misspelled is none.
    """
    fenced = tuple(int(text) for text in _entries(annotations.get(FENCE, "")) if _SHARD.fullmatch(text))
    return Wanted(
        is_paused=annotations.get(PAUSED, "false") != "false",
        fenced=fenced,
        is_hibernated=annotations.get(HIBERNATE) == "true",
    )


def asked(annotations: Mapping[str, str]) -> tuple[Wanted, str]:
    """What is asked for; with a complaint where that cannot all be understood, and then only what stands holds."""
    try:
        return wanted(annotations), ""
    except ManifestError as error:
        return standing(annotations), str(error)


def without(text: str, order: str) -> str:
    """An annotation of several orders once one is taken off it."""
    return ",".join(entry for entry in _entries(text) if entry != order)


def without_request(annotations: Mapping[str, str], request: str) -> dict[str, str | None]:
    """The change that removes a promotion request or a restore. With the last promotion goes the accepted loss."""
    if request.startswith(RESTORING):
        text = annotations.get(RESTORE, "")
        rest = without(text, request.removeprefix(RESTORING))
        return {} if rest == text else {RESTORE: rest or None}
    text = annotations.get(PROMOTE, "")
    rest = without(text, request)
    if rest == text:
        return {}
    return {PROMOTE: rest} if rest else {PROMOTE: None, ACCEPT_LOSS: None}


def without_disk_replacement(annotations: Mapping[str, str], shard: int, member: int) -> dict[str, str | None]:
    """The change that removes the order to replace the disk of a member."""
    text = annotations.get(REPLACE_DISK, "")
    rest = without(text, f"{shard}/{member}")
    return {} if rest == text else {REPLACE_DISK: rest or None}


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _switch(annotations: Mapping[str, str], name: str) -> bool:
    text = annotations.get(name, "false")
    if text not in ("true", "false"):
        raise _problem(name, f'{text!r} is neither "true" nor "false"')
    return text == "true"


def _shards(annotations: Mapping[str, str], name: str) -> list[int]:
    found = []
    for text in _entries(annotations.get(name, "")):
        if _SHARD.fullmatch(text) is None:
            raise _problem(name, f'{text!r} is no shard: write "0,2" for the shards 0 and 2')
        found.append(int(text))
    return sorted(set(found))


def _loss(text: str) -> int | None:
    try:
        return None if text == "any" else parse_size(text)
    except ValueError as error:
        raise _problem(ACCEPT_LOSS, f'{error}, or "any"') from error


def _problem(name: str, text: str) -> ManifestError:
    return ManifestError([Problem(f"metadata.annotations[{name}]", text)])
