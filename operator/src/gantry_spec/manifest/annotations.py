"""Requests of people to a running group, written as annotations, so that `kubectl annotate` is enough.

    gantry.dev/paused: "true"                 the operator takes no action
    gantry.dev/promote: "0=2"                 shard 0: promote member 2; "0" leaves the choice to the election
    gantry.dev/promote: "0=2@tuesday"         the same request again: any suffix after @ makes it a new request
    gantry.dev/accept-loss: "64Mi"            these promotions may lose so many bytes; "any" accepts any loss
    gantry.dev/replace-disk: "0/2"            the lost volume of member 2 of shard 0 is given up
    gantry.dev/restore: "0"                   restore shard 0 without its Lease; data that no volume has is given up
    gantry.dev/backup: "before-upgrade"       make a backup with this name
    gantry.dev/fence: "0,1"                   while this is set, shards 0 and 1 take no sends and keep their masters
    gantry.dev/hibernate: "true"              while this is set, no pod runs; the volumes are kept
    gantry.dev/allow-deletion: "true"         this object may be deleted with its data (``gantry_spec.admission``)

Several entries are separated by commas. ``paused``, ``fence`` and ``hibernate`` are states, which the operator never
removes. The others are requests, and a finished request is removed. A promotion's id is its entry; a restore's is
``restore SHARD``.

``FORMATS`` has the format of each value. The admission policies of the chart are generated from it, so that the API
server refuses what the operator could not execute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.group import API_GROUP
from gantry_spec.manifest.quantities import SIZE_FORM, parse_size
from gantry_spec.observed import PromotionRequest

PAUSED: Final = f"{API_GROUP}/paused"
PROMOTE: Final = f"{API_GROUP}/promote"
ACCEPT_LOSS: Final = f"{API_GROUP}/accept-loss"
REPLACE_DISK: Final = f"{API_GROUP}/replace-disk"
RESTORE: Final = f"{API_GROUP}/restore"
BACKUP: Final = f"{API_GROUP}/backup"
FENCE: Final = f"{API_GROUP}/fence"
HIBERNATE: Final = f"{API_GROUP}/hibernate"
ALLOW_DELETION: Final = f"{API_GROUP}/allow-deletion"
"""The annotation with which a person confirms that an object is to be deleted with its data; not an order."""

BLANKS: Final = " \t\r\n"
"""The characters that are ignored around the entries of a value."""

BLANK_FORM: Final = r"[ \t\r\n]*"
"""The same as a regular expression."""

BACKUP_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", re.ASCII)
"""The names of backups, which become part of the names of snapshots."""

RESTORE_ID_PREFIX: Final = "restore "
"""The prefix of the id of a restore request; the number of the shard follows."""


class Format(NamedTuple):
    """The format of the values of an annotation. Python and RE2, which the API server uses, read the pattern alike."""

    name: str
    pattern: str
    """The pattern of a valid value as a whole, or of an entry of a list."""

    problem: str
    """What is wrong with another value, and what to write instead; it follows the value in a message."""

    is_list: bool = False
    """Whether a value consists of entries, which commas separate; empty ones are ignored."""


_SWITCH: Final = "true|false"
_SWITCH_PROBLEM: Final = 'is neither "true" nor "false"'
_SHARD: Final = r"\d{1,3}"
_SHARD_PROBLEM: Final = 'is not a shard: write "0,2" for the shards 0 and 2'

FORMATS: Final = {
    one.name: one
    for one in (
        Format(PAUSED, _SWITCH, _SWITCH_PROBLEM),
        Format(HIBERNATE, _SWITCH, _SWITCH_PROBLEM),
        Format(
            PROMOTE,
            r"(\d{1,3})(?:=(\d{1,3}))?(?:@[-\w:.+]{1,60})?",
            'is not a promotion: write "0=2" for member 2 of shard 0',
            is_list=True,
        ),
        Format(
            ACCEPT_LOSS,
            f"any|{BLANK_FORM}{SIZE_FORM}{BLANK_FORM}",
            'is not a size: write it like 64Mi, 10Gi or 4096, or "any"',
        ),
        Format(
            REPLACE_DISK,
            r"(\d{1,3})/(\d{1,3})",
            'is not a member: write "0/2" for member 2 of shard 0',
            is_list=True,
        ),
        Format(RESTORE, _SHARD, _SHARD_PROBLEM, is_list=True),
        Format(FENCE, _SHARD, _SHARD_PROBLEM, is_list=True),
        Format(
            BACKUP,
            f"(?:{BACKUP_NAME.pattern})?",
            "is not a name: write up to 40 lowercase letters, digits and hyphens",
        ),
    )
}
"""The formats of all annotations that the operator reads."""

ONE_PROMOTION: Final = "a shard may have only one promotion"
"""The message for several promotions of one shard, which no pattern can refuse."""

CHARACTERS_MAX: Final = 4096
"""The most characters of a value, which suffice for a thousand shards. The API server's time to check it is bounded."""

TOO_LONG: Final = f"is too long: write at most {CHARACTERS_MAX} characters"
"""The message for a longer value; it follows the value's description."""

_PATTERNS: Final = {one.name: re.compile(one.pattern, re.ASCII) for one in FORMATS.values()}


class RequestedPromotion(NamedTuple):
    """A promotion that an annotation requests."""

    id: str
    shard: int
    to: int
    """The member to promote; 0 leaves the choice to the election."""

    loss_accepted: int | None
    """How many bytes the promotion may lose; None accepts any loss."""


class GroupRequests(NamedTuple):
    """All requests that the annotations of a group contain."""

    is_paused: bool = False
    promotions: tuple[RequestedPromotion, ...] = ()
    lost_disks: tuple[tuple[int, int], ...] = ()
    """The shards and members of volumes that are given up."""

    restored_shards: tuple[int, ...] = ()
    """The shards to restore from their existing volumes."""

    fenced_shards: tuple[int, ...] = ()
    """The shards that must refuse sends and keep their masters."""

    is_hibernated: bool = False
    backup: str = ""
    """The name of the backup that is requested; empty without one."""

    def request(self, shard: int) -> PromotionRequest | None:
        """Return the promotion that is requested for a shard; None if there is none."""
        found = next((one for one in self.promotions if one.shard == shard), None)
        if found is None:
            return None
        return PromotionRequest(id=found.id, to=found.to or None, loss_accepted=found.loss_accepted)


def parse_requests(annotations: Mapping[str, str]) -> GroupRequests:
    """Return the requests in a group's annotations. Raises ``ManifestError``; other annotations are ignored."""
    for name in FORMATS:
        if len(annotations.get(name, "")) > CHARACTERS_MAX:
            raise _problem(name, f"the value of an order {TOO_LONG}")
    loss = _loss(annotations.get(ACCEPT_LOSS, "0"))
    promotions = []
    for text in _entries(annotations.get(PROMOTE, "")):
        match = _match(PROMOTE, text)
        promotions.append(RequestedPromotion(text, int(match[1]), int(match[2] or 0), loss))
    if len({one.shard for one in promotions}) < len(promotions):
        raise _problem(PROMOTE, ONE_PROMOTION)
    lost_disks = []
    for text in _entries(annotations.get(REPLACE_DISK, "")):
        match = _match(REPLACE_DISK, text)
        lost_disks.append((int(match[1]), int(match[2])))
    return GroupRequests(
        is_paused=_switch(annotations, PAUSED),
        promotions=tuple(promotions),
        lost_disks=tuple(lost_disks),
        restored_shards=tuple(_shards(annotations, RESTORE)),
        fenced_shards=tuple(_shards(annotations, FENCE)),
        is_hibernated=_switch(annotations, HIBERNATE),
        backup=_backup(annotations.get(BACKUP, "")),
    )


def parse_states(annotations: Mapping[str, str]) -> GroupRequests:
    """Return the states that hold although an annotation is invalid, so that a typo elsewhere ends no fence and no
    hibernation.

    An invalid value of ``paused`` pauses the group, since that is harmless. An invalid ``hibernate`` counts as absent,
    and so does an invalid entry of ``fence``, while its other entries hold.
    """
    fenced = tuple(int(text) for text in _entries(annotations.get(FENCE, "")) if _PATTERNS[FENCE].fullmatch(text))
    return GroupRequests(
        is_paused=annotations.get(PAUSED, "false") != "false",
        fenced_shards=fenced,
        is_hibernated=annotations.get(HIBERNATE) == "true",
    )


def read_requests(annotations: Mapping[str, str]) -> tuple[GroupRequests, str]:
    """Return the requests and no error, or, if an annotation is invalid, only the states and an error message."""
    try:
        return parse_requests(annotations), ""
    except ManifestError as error:
        return parse_states(annotations), str(error)


def remove_entry(text: str, removed: str) -> str:
    """Return an annotation's text without one of its entries."""
    return ",".join(entry for entry in _entries(text) if entry != removed)


def without_request(annotations: Mapping[str, str], request: str) -> dict[str, str | None]:
    """Return the change that removes a promotion request or a restore.

    The accepted loss is removed with the last promotion request.
    """
    if request.startswith(RESTORE_ID_PREFIX):
        text = annotations.get(RESTORE, "")
        rest = remove_entry(text, request.removeprefix(RESTORE_ID_PREFIX))
        return {} if rest == text else {RESTORE: rest or None}
    text = annotations.get(PROMOTE, "")
    rest = remove_entry(text, request)
    if rest == text:
        return {}
    return {PROMOTE: rest} if rest else {PROMOTE: None, ACCEPT_LOSS: None}


def without_disk_replacement(annotations: Mapping[str, str], shard: int, member: int) -> dict[str, str | None]:
    """Return the change that removes the request to replace the disk of a member."""
    text = annotations.get(REPLACE_DISK, "")
    rest = remove_entry(text, f"{shard}/{member}")
    return {} if rest == text else {REPLACE_DISK: rest or None}


def without_backup(annotations: Mapping[str, str], name: str) -> dict[str, str | None]:
    """Return the change that removes the request of a backup."""
    return {BACKUP: None} if annotations.get(BACKUP) == name else {}


def _backup(text: str) -> str:
    return _match(BACKUP, text)[0]


def _entries(text: str) -> list[str]:
    return [stripped for entry in text.split(",") if (stripped := entry.strip(BLANKS))]


def _switch(annotations: Mapping[str, str], name: str) -> bool:
    return _match(name, annotations.get(name, "false"))[0] == "true"


def _shards(annotations: Mapping[str, str], name: str) -> list[int]:
    return sorted({int(_match(name, text)[0]) for text in _entries(annotations.get(name, ""))})


def _loss(text: str) -> int | None:
    _match(ACCEPT_LOSS, text)
    try:
        return None if text == "any" else int(parse_size(text))
    except ValueError as error:
        raise _problem(ACCEPT_LOSS, f'{error}, or "any"') from error


def _match(name: str, text: str) -> re.Match[str]:
    """Return the match of an annotation's value, or of an entry of it. Raises ``ManifestError`` for any other text."""
    match = _PATTERNS[name].fullmatch(text)
    if match is None:
        raise _problem(name, f"{text!r} {FORMATS[name].problem}")
    return match


def _problem(name: str, text: str) -> ManifestError:
    return ManifestError([Problem(f"metadata.annotations[{name}]", text)])
