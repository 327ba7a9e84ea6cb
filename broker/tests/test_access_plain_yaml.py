"""The part of YAML that accounts are written in: read as every YAML parser would, or refused with a line number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_access.errors import AccessFileError
from gantry_access.plain_yaml import Node, read_plain_yaml

READ: list[tuple[str, Node]] = [
    ("", None),
    ("# only a comment\n\n", None),
    ("---\na: b\n", {"a": "b"}),
    ("a: b # c\n", {"a": "b"}),
    ("a: b#c\n", {"a": "b#c"}),
    ("a: 'b # c'\n", {"a": "b # c"}),
    ("a: it's\n", {"a": "it's"}),
    ("a: 'it''s'\n", {"a": "it's"}),
    ("a: 'it''s # b' # c\n", {"a": "it's # b"}),
    ('a: "x\\"y\\\\z\\n"\n', {"a": 'x"y\\z\n'}),
    ("a: b:c\n", {"a": "b:c"}),
    ("a: http://b/c?d=e\n", {"a": "http://b/c?d=e"}),
    ("'a b': c\n", {"a b": "c"}),
    ("a:\nb: ~\nc: null\nd: ''\n", {"a": None, "b": None, "c": None, "d": ""}),
    ("a: 010\nb: true\nc: 1e3\n", {"a": "010", "b": "true", "c": "1e3"}),
    ("a: []\nb: [x, y=1|2]\n", {"a": [], "b": ["x", "y=1|2"]}),
    ("a:\n  - x\n  - y\n", {"a": ["x", "y"]}),
    ("a:\n- x\n- y\nb: c\n", {"a": ["x", "y"], "b": "c"}),
    ("a:\n  - b: 1\n    c: 2\n\n  - b: 3\n", {"a": [{"b": "1", "c": "2"}, {"b": "3"}]}),
    ("a:\n  -\n    b: 1\n  -\n", {"a": [{"b": "1"}, None]}),
    ("a:\n  b:\n    c: d\n  e: f\n", {"a": {"b": {"c": "d"}, "e": "f"}}),
    ("- a\n- b\n", ["a", "b"]),
    ("a: b\r\nc: d\r\n", {"a": "b", "c": "d"}),
]
REFUSED = [
    ("a: &x b\n", "line 1: .*must stand in quotes"),
    ("a: *x\n", "line 1: .*must stand in quotes"),
    ("a: !!str b\n", "line 1"),
    ("a: |\n  b\n", "line 1"),
    ("a: {b: c}\n", "line 1"),
    ("a: b: c\n", "line 1: .*colon"),
    ("a: b\n   c\n", "line 2"),
    ("a: b\n   c: d\n", "line 2"),
    ("a: b\nc\n", "line 2: write key: value"),
    ("a: b\na: c\n", "line 2: a comes twice"),
    ("a: 'b\n", "line 1: a quote is not closed"),
    ("a: 'b' c\n", "line 1: something stands behind"),
    ('a: "b" c\n', "line 1: something stands behind"),
    ('a: "\\x41"\n', "line 1: of the escapes"),
    ("a: [b\n", "line 1: a list in brackets"),
    ("a: [b, [c]]\n", "line 1: a list in brackets"),
    ("a:\n\t- b\n", "line 2: indent with spaces"),
    ("a: b\n---\nc: d\n", "line 2: one file"),
    ("- a\nb: c\n", "line 2"),
    ("".join(" " * depth + "a:\n" for depth in range(40)), "line .*nested deeper"),
]


@pytest.mark.parametrize(("text", "found"), READ, ids=[repr(text) for text, _ in READ])
def test_what_accounts_are_written_in_is_read(text: str, found: Node) -> None:
    """Every value is text, whatever it looks like."""
    assert read_plain_yaml(text) == found


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=[repr(text[:30]) for text, _ in REFUSED])
def test_everything_else_of_yaml_is_refused(text: str, says: str) -> None:
    """Nothing is passed over and nothing guessed."""
    with pytest.raises(AccessFileError, match=says):
        read_plain_yaml(text)


@given(st.text(alphabet="ab:- #'\"[],\n\\&*|~=", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text raises anything else, and no error quotes more than a key."""
    try:
        read_plain_yaml(text)
    except AccessFileError as error:
        assert str(error).startswith("line ")
