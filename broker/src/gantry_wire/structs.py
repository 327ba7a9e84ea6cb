"""Preparation of msgspec Struct classes before threads use them.

msgspec inspects a class when it decodes it for the first time, and caches the result in the class. When two threads do
so at the same moment, msgspec 0.22 may crash the process. A program that starts decoding threads, or is called by such
threads, therefore has all classes inspected first, in one thread at a time.
"""

import threading
from typing import Any, Final, final

import msgspec


@final
class PreparedStructs:
    """The struct classes that msgspec has inspected. Its lock guards all fields."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._classes: Final[set[type]] = set()

    def __repr__(self) -> str:
        return f"<PreparedStructs classes={len(self._classes)}>"

    def add(self, roots: tuple[type[Any], ...]) -> int:
        """Have `roots` and their subclasses inspected in this thread. Return how many were new."""
        with self._lock:
            struct_classes = [one for one in _collect_subclasses(roots) if one not in self._classes]
            for struct_class in struct_classes:
                _prepare(struct_class)
                self._classes.add(struct_class)
            return len(struct_classes)


_prepared: Final = PreparedStructs()


def make_structs_ready(*roots: type[Any]) -> int:
    """Inspect every Struct class defined so far, or `roots` and their subclasses. Return how many were new.

    Call it after the imports and before this thread, or one that it starts, decodes. Any number of threads may call it
    at once: each returns when all classes are inspected. A second call costs almost nothing.
    """
    return _prepared.add(roots or tuple(msgspec.Struct.__subclasses__()))


def _collect_subclasses(roots: tuple[type[Any], ...]) -> list[type[Any]]:
    found: dict[type[Any], None] = {}
    pending = list(roots)
    while pending:
        struct_class = pending.pop()
        if struct_class not in found:
            found[struct_class] = None
            pending += struct_class.__subclasses__()
    return list(found)


def _prepare(struct_class: type[Any]) -> None:
    try:
        msgspec.json.Decoder(struct_class)
    except (TypeError, NameError):
        return  # a generic class, or one with unresolvable annotations: no value of it can be decoded
