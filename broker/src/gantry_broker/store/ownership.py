"""Which of the small files that name a store are this store's, when they name different ones.

    store.json     its copy     recovery-point.json     log-heads.json  --its heads fit-->  the log

One of them may have come from another store. An identity that is believed wrongly would use epochs twice and take our
records for another store's, so it is replaced by its copy, or the start is refused; the others are left out, which
costs a start some reading. Pure but for ``own_files``, which reads both copies of the identity and reports.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from gantry_broker.errors import ConfigCorrupt
from gantry_broker.store.file_heads import HEADS_FILE, ComparedHeads, LogHeads
from gantry_broker.store.identity import IdentityFile, StoreIdentity
from gantry_broker.store.recovery_point import RecoveryPoint

log = logging.getLogger(__name__)


class Stranger(Enum):
    """Which small file is another store's."""

    IDENTITY = "store.json; its copy is this store's"
    BOTH_COPIES = "store.json and its copy"
    ONE_COPY = "store.json or its copy, and nothing says which"


class OwnFiles(NamedTuple):
    """What a start believes, since it is of this store."""

    identity: StoreIdentity | None
    """None where there is no ``store.json`` and no copy."""

    point: RecoveryPoint | None
    heads: LogHeads | None

    @property
    def store(self) -> str:
        """The name of the store in the files beside ``store.json``."""
        if self.heads is not None:
            return self.heads.store
        return self.point.store if self.point is not None else ""


def find_stranger(
    identity: StoreIdentity, twin: StoreIdentity | None, point: RecoveryPoint | None, heads: LogHeads | None,
    compared: ComparedHeads,
) -> Stranger | None:  # fmt: skip
    """Which copy of the identity is another store's; None if nothing speaks against it.

    The log decides where it can: it is of the store whose heads fit its files. Else two of three names do.
    """
    if heads is not None and compared.same:
        if identity.is_of(heads.store):
            return None
        return Stranger.IDENTITY if twin is not None and twin.is_of(heads.store) else Stranger.BOTH_COPIES
    if twin is None or twin.uuid == identity.uuid:
        return None
    names = [one.store for one in (point, heads) if one is not None and one.store]
    if any(identity.is_of(name) for name in names):
        return None
    return Stranger.IDENTITY if any(twin.is_of(name) for name in names) else Stranger.ONE_COPY


def own_files(
    file: IdentityFile, point: RecoveryPoint | None, heads: LogHeads | None, compared: ComparedHeads
) -> OwnFiles:
    """The small files that name their store, as far as they are this one's. Raises ``ConfigCorrupt``."""
    identity, twin = file.read(), file.read_twin()
    if identity is None:
        return OwnFiles(None, point, heads)
    match find_stranger(identity, twin, point, heads, compared):
        case Stranger.ONE_COPY:
            raise ConfigCorrupt(
                f"{file.path} and {file.twin_path} are of different stores, and no other file says which of them is "
                f"this one's: remove the one that another store wrote"
            )
        case Stranger.BOTH_COPIES:
            raise ConfigCorrupt(
                f"{file.path} and its .bak were written by another store ({identity.uuid}): the log is of "
                f"{heads.store if heads is not None else '?'}. Put this store's own store.json back; or, in a group, "
                f"move the store away and start empty: the broker copies everything from its master. Without a copy of "
                f"it remove both: then no record that is in the log needs a seal"
            )
        case Stranger.IDENTITY:
            assert twin is not None, "its copy is this store's"
            extra = {"path": file.path, "store": identity.uuid, "expected": twin.uuid}
            log.error("store.json was written by another store, its copy is used", extra=extra)
            identity = twin
        case None:
            pass
    if point is not None and not identity.is_of(point.store):
        extra = {"path": "recovery-point.json", "store": point.store, "expected": identity.uuid}
        log.error("the recovery point was written by another store and is not used", extra=extra)
        point = None
    if heads is not None and not identity.is_of(heads.store):
        extra = {"path": HEADS_FILE, "store": heads.store, "expected": identity.uuid}
        log.error("log-heads.json was written by another store and is not used", extra=extra)
        heads = None
    return OwnFiles(identity, point, heads)
