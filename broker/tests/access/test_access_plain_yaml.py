"""The YAML subset of account files: values are strings, other features are refused with their line, in both parsers."""

from __future__ import annotations

import itertools
import traceback

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gantry_access.errors import AccessFileError
from gantry_access.plain_yaml import Loader, Node, read_plain_yaml

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
    ("a: {b: c}\nd: [x, [y]]\n", {"a": {"b": "c"}, "d": ["x", ["y"]]}),
    ("a: |\n  b\n  c\n", {"a": "b\nc\n"}),
    ("a: 0x1F\nb: 2020-01-01\nc: .inf\nd: =\n", {"a": "0x1F", "b": "2020-01-01", "c": ".inf", "d": "="}),
    ("a: 'null'\nb: \"~\"\n", {"a": "null", "b": "~"}),
]
LOADERS = pytest.mark.parametrize("loader", [yaml.BaseLoader, yaml.CBaseLoader], ids=["python", "compiled"])
REFUSED = [
    ("a: &x b\n", "line 1: anchors"),
    ("a: *x\n", "line 1: anchors"),
    ("a: !!str b\n", "line 1: tags"),
    ("a: ! b\n", "line 1: tags"),
    ("a: b: c\n", "line 1: invalid YAML"),
    ("a: b\n   c: d\n", "line 2"),
    ("a: b\nc\n", "line [23]"),
    ("a: b\na: c\n", "line 2: duplicate key a"),
    ("a: 'b\n", "line 2: invalid YAML"),
    ("a: 'b' c\n", "line 1: invalid YAML"),
    ('a: "b" c\n', "line 1: invalid YAML"),
    ('a: "\\y"\n', "line 1: invalid YAML"),
    ("a: [b\n", "line [12]: invalid YAML"),
    ("a:\n\t- b\n", "line 2: invalid YAML"),
    ("a: b\n---\nc: d\n", "line 2: a file must contain one document"),
    ("- a\nb: c\n", "line 2"),
    ("a: b\n? [c]\n: d\n", "line 2: a key must be a string"),
    ("a: {b: c, b: d}\n", "line 1: duplicate key b"),
    ("a: b\nc: \x00\n", "line 2: .*not allowed"),
    ("a: &a [x]\nb: [*a, *a]\n", "line 1: anchors"),
    ("a: !!python/object/apply:os.system [x]\n", "line 1: tags"),
    ("[" * 100_000, "line 1: nested deeper"),
    ("".join(" " * depth + "a:\n" for depth in range(40)), "line .*nested deeper"),
]


@LOADERS
@pytest.mark.parametrize(("text", "found"), READ, ids=[repr(text) for text, _ in READ])
def test_supported_yaml_is_read(text: str, found: Node, loader: Loader) -> None:
    """Every value is a string, even if it resembles another YAML type; only empty, `~` and `null` are None."""
    assert read_plain_yaml(text, loader) == found


@LOADERS
@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[repr(text[:30]) for text, _ in REFUSED])
def test_unsupported_yaml_features_are_refused(text: str, message: str, loader: Loader) -> None:
    """No feature is ignored or guessed."""
    with pytest.raises(AccessFileError, match=message):
        read_plain_yaml(text, loader)


def test_alias_bomb_is_refused() -> None:
    """A full YAML reader would expand a few hundred bytes to a list of a billion items; the twin is such a reader."""
    bomb = "a: &a [x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 2)}]\n" for old, new in itertools.pairwise("abcdef")
    )
    assert str(yaml.safe_load(bomb)["f"]).count("x") == 2**6

    with pytest.raises(AccessFileError, match="line 1: anchors"):
        read_plain_yaml(bomb)


@pytest.mark.parametrize(
    "text", ["a: 'hunter2\n", "hunter2: b: c\n", "a: [hunter2\n", "- a\nhunter2: b\n", "a: *hunter2\n"]
)
@LOADERS
def test_yaml_errors_contain_no_secret(text: str, loader: Loader) -> None:
    """Neither the error nor its cause, which a log would show, quotes a value."""
    with pytest.raises(AccessFileError) as caught:
        read_plain_yaml(text, loader)

    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@LOADERS
@given(st.text(alphabet="ab:- #'\"[],{}\n\t&*|>~=?!%@`\\\0\x85\ufeff", max_size=60))
def test_any_text_is_read_or_refused(loader: Loader, text: str) -> None:
    """No text raises any other error, and every error names its line."""
    try:
        read_plain_yaml(text, loader)
    except AccessFileError as error:
        assert str(error).startswith("line ")
