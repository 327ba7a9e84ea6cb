"""YAML as accounts are written in it: mappings, lists and text, read by PyYAML, and nothing that is clever.

Every value is text, as the file has it: a secret of digits stays the digits that were written, `0123` and `1e3`
included, and `NO` is no boolean; only an empty value, `~` and `null` are nothing. PyYAML's parser says what the text
is made of, and no object is ever constructed from a tag. What would make a file mean more than is seen in it is refused
with its line: anchors and aliases (a few lines of which can be gigabytes), tags, several documents, and a key that
comes twice. In a file that says who may do what, half of a misunderstanding is worse than an error.

No error quotes the line, since a secret may stand in it. How large a file may be is up to whoever reads it.
"""

from collections.abc import Iterator
from typing import Final, final

import yaml

from gantry_access.errors import AccessFileError

Node = str | None | list["Node"] | dict[str, "Node"]
"""Text, nothing, a list, or a mapping."""

Loader = type[yaml.BaseLoader] | type[yaml.CBaseLoader]

LOADER: Final[Loader] = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader
"""The compiled parser where there is one: it is ten times as fast, and a file may have many accounts."""

DEPTH_MAX: Final = 8
KEY_CHARACTERS_SHOWN: Final = 64
_NOTHING: Final = ("", "~", "null")


def read_plain_yaml(text: str, loader: Loader = LOADER) -> Node:
    """The document in `text`; None for an empty one. Raises AccessFileError."""
    unreadable = yaml.BaseLoader.NON_PRINTABLE.search(text)
    if unreadable is not None:
        raise _fault(text.count("\n", 0, unreadable.start()), "it holds a character that is not allowed in YAML")
    try:
        return _Reader(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        raise _no_yaml(error) from None
    except yaml.YAMLError:
        raise _fault(0, "it is no YAML") from None


@final
class _Reader:
    """Walks over what the parser finds, once."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events

    def document(self) -> Node:
        found: list[Node] = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found:
                    raise _fault(_line(event), "one file is one document")
                found.append(self._node(next(self._events), 0))
        return found[0] if found else None

    def _node(self, event: yaml.Event, depth: int) -> Node:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _fault(line, "anchors and aliases (& and *) are not read; put such text in quotes")
        if getattr(event, "tag", None) is not None:
            raise _fault(line, "tags (!) are not read; put such text in quotes")
        if isinstance(event, yaml.ScalarEvent):
            is_plain = event.implicit[0]
            return None if is_plain and event.value in _NOTHING else str(event.value)
        if depth == DEPTH_MAX:
            raise _fault(line, f"nested deeper than {DEPTH_MAX}")
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self._items(depth))
        assert isinstance(event, yaml.MappingStartEvent), "nothing else begins a node"
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
                raise _fault(line, "a key is a text")
            if key in found:
                raise _fault(line, f"{key[:KEY_CHARACTERS_SHOWN]} comes twice")
            found[key] = self._node(next(self._events), depth + 1)
        return found


def _line(event: yaml.Event) -> int:
    return 0 if event.start_mark is None else event.start_mark.line


def _no_yaml(error: yaml.MarkedYAMLError) -> AccessFileError:
    """The parser's words without the line that it quotes."""
    mark, began = error.problem_mark, error.context_mark
    context = f", {error.context} that begins in line {began.line + 1}" if error.context and began else ""
    return _fault(0 if mark is None else mark.line, f"it is no YAML: {error.problem}{context}")


def _fault(line: int, text: str) -> AccessFileError:
    """`line` counts from 0, as the parser does."""
    return AccessFileError(f"line {line + 1}: {text}")
