"""The fields of a part with their types, bounds, defaults and descriptions, for parsing, schemas and documents.

Descriptions are the texts below the fields in the source. So the code, ``kubectl explain`` and ``docs/groups.md`` have
the same sentences.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec


class Field(NamedTuple):
    """One field of a part."""

    name: str
    """The name of the field in a manifest."""

    attribute: str
    """The name of the field in the Python class."""

    kind: Any
    """The type of the field without its bounds and without None."""

    bounds: msgspec.Meta | None
    is_optional: bool
    """Whether the field may be null."""

    is_required: bool
    default: Any
    """The default of a field that is not required."""

    description: str
    """The text below the field in the source."""


def is_part(kind: Any) -> bool:
    """Return whether a type is a struct of fields."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@cache
def fields_of(part: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the fields of a part in their order in the source."""
    hints, texts = get_type_hints(part, include_extras=True), _descriptions(part)
    found = []
    for info in msgspec.structs.fields(part):
        kind, bounds, is_optional = _plain(hints[info.name])
        default = info.default
        if info.default_factory is not msgspec.NODEFAULT:
            default = info.default_factory()
        found.append(
            Field(
                name=info.encode_name,
                attribute=info.name,
                kind=kind,
                bounds=bounds,
                is_optional=is_optional,
                is_required=info.required,
                default=None if info.required else default,
                description=texts.get(info.name, ""),
            )
        )
    return tuple(found)


def walk_fields(part: type[msgspec.Struct], path: str) -> Iterator[tuple[str, Field]]:
    """Yield every field below a part with its path. The path of a list's items has ``[]``."""
    for field in fields_of(part):
        here = f"{path}.{field.name}"
        yield here, field
        kind, suffix = field.kind, ""
        if get_origin(kind) in (list, tuple):
            kind, suffix = _plain(get_args(kind)[0])[0], "[]"
        if is_part(kind):
            yield from walk_fields(kind, here + suffix)


def item_of(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    """Return the type of a list's items and their bounds."""
    plain, bounds, _ = _plain(get_args(kind)[0])
    return plain, bounds


def _plain(hint: Any) -> tuple[Any, msgspec.Meta | None, bool]:
    """Return a type without its bounds and without None, the bounds, and whether it may be null."""
    bounds, is_optional = None, False
    while True:
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            bounds = next((one for one in extras if isinstance(one, msgspec.Meta)), bounds)
        elif get_origin(hint) in (Union, UnionType):
            kinds = [one for one in get_args(hint) if one is not NoneType]
            is_optional = len(kinds) < len(get_args(hint))
            assert len(kinds) == 1, f"{hint}: a field has one kind of value"
            hint = kinds[0]
        else:
            return hint, bounds, is_optional


def _descriptions(part: type[msgspec.Struct]) -> dict[str, str]:
    """Return the text below each field of a class and of its base classes."""
    texts: dict[str, str] = {}
    for one in reversed(part.__mro__):
        if one is not msgspec.Struct and issubclass(one, msgspec.Struct):
            texts |= _own_descriptions(one)
    return texts


def _own_descriptions(part: type) -> dict[str, str]:
    tree = ast.parse(inspect.getsource(part))
    assert isinstance(tree.body[0], ast.ClassDef), "a class has the source of a class"
    body = tree.body[0].body
    texts = {}
    for field, after in pairwise(body):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            texts[field.target.id] = " ".join(str(after.value.value).split())
    return texts


def description_of(part: type) -> str:
    """Return the description of a part: the first paragraph of its docstring."""
    return " ".join((inspect.getdoc(part) or "").split("\n\n")[0].split())
