"""Preparation of msgspec Struct classes before threads use them.

msgspec inspects a class when it decodes it for the first time, and caches the result in the class. When two threads do
so at the same moment, msgspec 0.22 may crash the process. A program that starts decoding threads, or is called by such
threads, therefore has all classes inspected first, in one thread.
"""

from typing import Any, Final

import msgspec

_prepared: Final[set[type]] = set()


def make_structs_ready(*roots: type[Any]) -> int:
    """Inspect every Struct class defined so far, or `roots` and their subclasses. Return how many were new.

    Call it after the imports and before the first thread starts. A second call costs almost nothing; concurrent calls
    are not allowed.
    """
    struct_classes = [
        struct_class
        for struct_class in _collect_subclasses(roots or tuple(msgspec.Struct.__subclasses__()))
        if struct_class not in _prepared
    ]
    for struct_class in struct_classes:
        _prepare(struct_class)
        _prepared.add(struct_class)
    return len(struct_classes)


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
