"""Struct classes made ready before threads use them.

msgspec works out how to read a class when it is read for the first time, and keeps that with the class. When two
threads do so at the same moment, msgspec 0.22 may take the process down with it. So whoever starts threads that read,
or is called by such threads, has all classes worked out first, in one of them.
"""

from typing import Any, Final

import msgspec

_done: Final[set[type]] = set()


def ready_structs(*roots: type[Any]) -> int:
    """Work out every Struct class that was defined until now, or `roots` and all below them. Gives how many were new.

    Call it after the imports and before the first thread: again costs next to nothing, at the same time is not allowed.
    """
    kinds = [kind for kind in _below(roots or tuple(msgspec.Struct.__subclasses__())) if kind not in _done]
    for kind in kinds:
        _work_out(kind)
        _done.add(kind)
    return len(kinds)


def _below(roots: tuple[type[Any], ...]) -> list[type[Any]]:
    found: dict[type[Any], None] = {}
    waiting = list(roots)
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found[kind] = None
            waiting += kind.__subclasses__()
    return list(found)


def _work_out(kind: type[Any]) -> None:
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, NameError):
        return  # no such value can be read at all: a generic, or a class whose annotations nobody can resolve
