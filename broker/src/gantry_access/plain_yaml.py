"""The subset of YAML in files of accounts: mappings, lists and strings, parsed by PyYAML.

Every value is a string as written: a secret of digits keeps its digits, including `0123` and `1e3`, and `NO` is no
boolean; only an empty value, `~` and `null` are None. PyYAML only parses events, and no object is constructed from a
tag. Features with a hidden meaning are refused with their line: anchors and aliases (a few lines of which can expand to
gigabytes), tags, several documents, and duplicate keys. In a file of permissions a misunderstanding is worse than an
error.

Errors do not quote the line, because it may contain a secret. The caller limits the size of the file.
"""

from collections.abc import Iterator
from typing import Final, final

import yaml

from gantry_access.errors import AccessFileError

Node = str | None | list["Node"] | dict[str, "Node"]
"""A string, None, a list, or a mapping."""

Loader = type[yaml.BaseLoader] | type[yaml.CBaseLoader]

LOADER: Final[Loader] = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader
"""The compiled parser if available: it is ten times as fast, and a file may have many accounts."""

DEPTH_MAX: Final = 8
"""Limit of the levels of a document."""
KEY_CHARACTERS_SHOWN: Final = 64
"""How much of a key an error text shows."""
_NOTHING: Final = ("", "~", "null")
"""The texts that YAML takes for no value."""


def read_plain_yaml(text: str, loader: Loader = LOADER) -> Node:
    """Parse the document in `text`; return None if it is empty. Raises AccessFileError."""
    unreadable = yaml.BaseLoader.NON_PRINTABLE.search(text)
    if unreadable is not None:
        raise _fault(text.count("\n", 0, unreadable.start()), "contains a character that is not allowed in YAML")
    try:
        return _Reader(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error) from None
    except yaml.YAMLError:
        raise _fault(0, "invalid YAML") from None


@final
class _Reader:
    """Builds the document from the events of the parser, in one pass."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events

    def document(self) -> Node:
        found: list[Node] = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found:
                    raise _fault(_line(event), "a file must contain one document only")
                found.append(self._node(next(self._events), 0))
        return found[0] if found else None

    def _node(self, event: yaml.Event, depth: int) -> Node:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _fault(line, "anchors and aliases (& and *) are not supported; quote such a string")
        if getattr(event, "tag", None) is not None:
            raise _fault(line, "tags (!) are not supported; quote such a string")
        if isinstance(event, yaml.ScalarEvent):
            is_plain = event.implicit[0]
            return None if is_plain and event.value in _NOTHING else str(event.value)
        if depth == DEPTH_MAX:
            raise _fault(line, f"nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self._items(depth))
        assert isinstance(event, yaml.MappingStartEvent), "no other event begins a node"
        return self._mapping(depth)

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _mapping(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = _line(event)
            key = self._node(event, depth + 1)
            if not isinstance(key, str):
                raise _fault(line, "a key must be a string")
            if key in found:
                raise _fault(line, f"duplicate key {key[:KEY_CHARACTERS_SHOWN]}")
            found[key] = self._node(next(self._events), depth + 1)
        return found


def _line(event: yaml.Event) -> int:
    return 0 if event.start_mark is None else event.start_mark.line


def _syntax_error(error: yaml.MarkedYAMLError) -> AccessFileError:
    """Return the error of the parser without the line that it quotes."""
    mark, began = error.problem_mark, error.context_mark
    context = f", {error.context} that begins in line {began.line + 1}" if error.context and began else ""
    return _fault(0 if mark is None else mark.line, f"invalid YAML: {error.problem}{context}")


def _fault(line: int, text: str) -> AccessFileError:
    """Return an error at `line`, which counts from 0, as in the parser."""
    return AccessFileError(f"line {line + 1}: {text}")
