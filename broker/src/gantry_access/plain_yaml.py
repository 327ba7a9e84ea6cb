"""The part of YAML in which accounts are written, and nothing else of it.

`plain_acl.yml` and `tools.yml` are mappings and lists in block form, with comments, quoted text, and lists of words in
brackets. Exactly that is read here. Every value is text, as the file has it: a secret of digits stays the digits that
were written, `0123` and `1e3` included, and `NO` is no boolean. Whatever else YAML has (anchors, tags, folded text,
text over several lines, mappings in braces, several documents) is refused with its line number, and so is a key that
comes twice: in a file that says who may do what, half of a misunderstanding is worse than an error. A YAML parser would
read everything that is read here the same way, but for the types of plain words.

No error quotes the line, since a secret may stand in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from gantry_access.errors import AccessFileError

Node = str | None | list["Node"] | dict[str, "Node"]
"""Text, nothing, a list, or a mapping."""

DEPTH_MAX: Final = 8
_REFUSED_STARTS: Final = "&*!|>%@`{}],?"
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "n": "\n", "t": "\t"}


@final
@dataclass(frozen=True, slots=True)
class _Line:
    """A line with something in it: where it begins, and its text without indentation and comment."""

    number: int
    indent: int
    text: str


def read_plain_yaml(text: str) -> Node:
    """The document in `text`; None for an empty one. Raises AccessFileError."""
    lines = list(_lines(text))
    if not lines:
        return None
    reader = _Reader(lines)
    node = reader.block(lines[0].indent, 0)
    reader.expect_end()
    return node


def _lines(text: str) -> Iterator[_Line]:
    is_begun = False
    for number, raw in enumerate(text.splitlines(), start=1):
        stripped = _without_comment(raw, number).rstrip()
        if not stripped:
            continue
        if stripped == "---" and not is_begun:
            is_begun = True
            continue
        if stripped in ("---", "..."):
            raise _fault(number, "one file is one document")
        is_begun = True
        body = stripped.lstrip(" ")
        if body[0] == "\t":
            raise _fault(number, "indent with spaces, not with tabs")
        yield _Line(number, len(stripped) - len(body), body)


def _without_comment(raw: str, number: int) -> str:
    """A line up to the `#` that begins a comment: at its start or behind a blank, and outside quotes."""
    quote = ""
    position = 0
    while position < len(raw):
        character = raw[position]
        if (quote == '"' and character == "\\") or (quote == "'" and raw[position : position + 2] == "''"):
            position += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and _may_begin_quote(raw, position):
            quote = character
        elif character == "#" and (position == 0 or raw[position - 1] in " \t"):
            return raw[:position]
        position += 1
    if quote:
        raise _fault(number, "a quote is not closed on its line")
    return raw


def _may_begin_quote(raw: str, position: int) -> bool:
    """A quote within a word is a character of the word."""
    before = raw[:position].rstrip(" \t")
    is_apart = len(before) < position or not before
    return not before or before[-1] in "[," or (is_apart and before[-1] in ":-")


@final
class _Reader:
    """Walks over the lines once."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self._next = 0

    def expect_end(self) -> None:
        if self._next < len(self._lines):
            number = self._lines[self._next].number
            raise _fault(number, "this line belongs to nothing above it: look at its indentation")

    def block(self, indent: int, depth: int) -> Node:
        """The mapping, list or word that begins with the next line, at `indent`."""
        line = self._lines[self._next]
        if depth > DEPTH_MAX:
            raise _fault(line.number, f"nested deeper than {DEPTH_MAX}")
        if _is_item(line.text):
            return self._list(indent, depth)
        if _key_end(line.text) >= 0:
            return self._mapping(indent, depth)
        self._next += 1
        return _scalar(line.text, line.number)

    def _mapping(self, indent: int, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while (line := self._peek()) is not None and line.indent == indent and not _is_item(line.text):
            end = _key_end(line.text)
            if end < 1:
                raise _fault(line.number, "write key: value")
            key = _scalar(line.text[:end].rstrip(), line.number)
            if not isinstance(key, str):
                raise _fault(line.number, "a key is one word")
            if key in found:
                raise _fault(line.number, f"{key} comes twice in one mapping")
            self._next += 1
            found[key] = self._value(line.text[end + 1 :].strip(), line, indent, depth)
        return found

    def _value(self, rest: str, line: _Line, indent: int, depth: int) -> Node:
        """What a key stands for: the rest of its line, or the block below. A list may stand as far left as its key."""
        if rest:
            return _scalar(rest, line.number)
        following = self._peek()
        if following is None:
            return None
        if following.indent > indent or (following.indent == indent and _is_item(following.text)):
            return self.block(following.indent, depth + 1)
        return None

    def _list(self, indent: int, depth: int) -> list[Node]:
        found: list[Node] = []
        while (line := self._peek()) is not None and line.indent == indent and _is_item(line.text):
            rest = line.text[1:].lstrip(" ")
            if not rest:
                self._next += 1
                following = self._peek()
                is_below = following is not None and following.indent > indent
                found.append(self.block(following.indent, depth + 1) if following is not None and is_below else None)
                continue
            # What stands behind the dash is a block of its own, as far in as it stands.
            inner = indent + len(line.text) - len(rest)
            self._lines[self._next] = _Line(line.number, inner, rest)
            found.append(self.block(inner, depth + 1))
        return found

    def _peek(self) -> _Line | None:
        return self._lines[self._next] if self._next < len(self._lines) else None


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _key_end(text: str) -> int:
    """Where the colon is that ends a key at the start of `text`; -1 when there is no key."""
    start = 0
    if text[0] in "\"'":
        start = text.find(text[0], 1) + 1
        if start == 0:
            return -1
        return start if text[start : start + 1] == ":" and text[start + 1 : start + 2] in ("", " ") else -1
    while (position := text.find(":", start)) >= 0:
        if text[position + 1 : position + 2] in ("", " "):
            return position
        start = position + 1
    return -1


def _scalar(text: str, number: int) -> Node:
    """One value on one line."""
    if text[0] == "[":
        return _flow_list(text, number)
    return _word(text, number)


def _word(text: str, number: int) -> str | None:
    if text[0] == "'":
        return _single_quoted(text, number)
    if text[0] == '"':
        return _double_quoted(text, number)
    if text[0] in _REFUSED_STARTS:
        raise _fault(number, f"a value that begins with {text[0]} must stand in quotes")
    if _key_end(text) >= 0:
        raise _fault(number, "a value with a colon and a blank in it must stand in quotes")
    return None if text in ("~", "null") else text


def _single_quoted(text: str, number: int) -> str:
    inside = text[1:-1]
    if len(text) < 2 or text[-1] != "'" or "'" in inside.replace("''", ""):
        raise _fault(number, "something stands behind the closing quote")
    return inside.replace("''", "'")


def _double_quoted(text: str, number: int) -> str:
    characters: list[str] = []
    position = 1
    while position < len(text) and text[position] != '"':
        character = text[position]
        if character == "\\":
            position += 1
            escaped = _ESCAPES.get(text[position : position + 1])
            if escaped is None:
                raise _fault(number, "of the escapes only these are known: " + " ".join(f"\\{key}" for key in _ESCAPES))
            character = escaped
        characters.append(character)
        position += 1
    if position != len(text) - 1:
        raise _fault(number, "something stands behind the closing quote")
    return "".join(characters)


def _flow_list(text: str, number: int) -> list[Node]:
    """`[a, b]`, of words only."""
    if text[-1] != "]":
        raise _fault(number, "a list in brackets ends on its line")
    inside = text[1:-1].strip()
    if not inside:
        return []
    parts = [part.strip() for part in inside.split(",")]
    if any(not part or part[0] in "\"'[" for part in parts):
        raise _fault(number, "a list in brackets holds words without quotes; write other values on lines of their own")
    return [_word(part, number) for part in parts]


def _fault(number: int, text: str) -> AccessFileError:
    return AccessFileError(f"line {number}: {text}")
