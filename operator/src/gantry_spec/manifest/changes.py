"""What an edit of a group may change: some fields are fixed once there is a store, and some only grow.

What is refused here would need another store, would throw messages away, or could not be rolled out one broker after
the other. Shards are taken away only when they are
empty, which nobody can see in the manifest: so that is not refused here, and waits with a reason (``decide``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from gantry_spec.manifest.errors import Problem
from gantry_spec.manifest.group import BrokerGroup, Spec


class Fixed(NamedTuple):
    """A field that an edit may not change as it likes."""

    path: str
    value: Callable[[Spec], Any]
    may_grow: bool
    reason: str
    cel: str
    """Over ``self`` and ``oldSelf``, the spec before and after."""


FIXED: Final = (
    Fixed(
        "spec.writeBuffer.segmentSize",
        lambda spec: spec.write_buffer.segment_size,
        False,
        "a store's files have one size for ever; make another group and move to it",
        "quantity(string(self.writeBuffer.segmentSize)).compareTo("
        "quantity(string(oldSelf.writeBuffer.segmentSize))) == 0",
    ),
    Fixed(
        "spec.storage.storageClassName",
        lambda spec: spec.storage.storage_class_name,
        False,
        "a volume stays in the class in which it was made; make another group and move to it",
        "self.storage.storageClassName == oldSelf.storage.storageClassName",
    ),
    Fixed(
        "spec.storage.size",
        lambda spec: spec.storage.size,
        True,
        "a volume only grows",
        "quantity(string(self.storage.size)).compareTo(quantity(string(oldSelf.storage.size))) >= 0",
    ),
    Fixed(
        "spec.access.tlsSecret",
        lambda spec: "on" if spec.access.tls_secret else "off",
        False,
        "a broker with TLS follows none without it, so TLS is on from the beginning or never;"
        " make another group and move to it",
        "(self.access.tlsSecret == '') == (oldSelf.access.tlsSecret == '')",
    ),
)


def changes(old: BrokerGroup, new: BrokerGroup) -> list[Problem]:
    """What is wrong with replacing ``old`` by ``new``; nothing if it may be done."""
    return list(_changes(old, new))


def _changes(old: BrokerGroup, new: BrokerGroup) -> Iterator[Problem]:
    if old.metadata.name != new.metadata.name:
        yield Problem("metadata.name", f"it was {old.metadata.name}, and another name is another group")
    for one in FIXED:
        before, after = one.value(old.spec), one.value(new.spec)
        if before == after or (one.may_grow and after > before):
            continue
        yield Problem(one.path, f"it was {before or 'empty'}, and {after or 'empty'} is refused: {one.reason}")
