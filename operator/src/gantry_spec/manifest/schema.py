"""Generation of ``openAPIV3Schema`` from the structs: structural, with the defaults and descriptions of the fields.

Sizes are numbers or text, so they are ``x-kubernetes-int-or-string``. Settings that are copied into pods preserve
unknown fields. The default of a whole part is ``{}``, and the API server fills in the defaults of its fields."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, get_args, get_origin

import msgspec

from gantry_spec.manifest.quantities import DURATION_PATTERN, SIZE_PATTERN, Duration, Size
from gantry_spec.manifest.struct_fields import Field, description_of, fields_of, is_part, item_of

Schema = dict[str, Any]

MAP_KEYS: dict[str, str] = {"topics": "name", "groups": "name", "conditions": "type"}
"""The lists of parts whose items are identified by a field, with that field."""


def schema_of(part: type[msgspec.Struct]) -> Schema:
    """Return the schema of a part with all its fields."""
    fields = fields_of(part)
    schema: Schema = {"type": "object", "properties": {field.name: field_schema(field) for field in fields}}
    required = [field.name for field in fields if field.is_required]
    return schema | ({"required": required} if required else {})


def field_schema(field: Field) -> Schema:
    """Return the schema of one field, with its description and its default."""
    schema = _kind_schema(field.kind, field.bounds)
    is_list = get_origin(field.kind) is list
    if field.name in MAP_KEYS and is_list and is_part(get_args(field.kind)[0]):
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [MAP_KEYS[field.name]]}
    if field.is_optional:
        schema["nullable"] = True
    description = field.description or (description_of(field.kind) if is_part(field.kind) else "")
    assert description, f"{field.name} needs a description, as the text below it"
    schema = {"description": description} | schema
    if not field.is_required and field.default is not None:
        schema["default"] = _default(field.default)
    return schema


def _default(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {}
    if isinstance(value, Size | Duration | StrEnum):
        return str(value)
    if isinstance(value, list):
        return [_default(one) for one in value]
    return value


def _kind_schema(kind: Any, bounds: msgspec.Meta | None) -> Schema:
    """Return the schema of a type with its bounds."""
    schema = _bare_schema(kind)
    if bounds is None:
        return schema
    counted = {"array": "Items", "object": "Properties", "string": "Length"}.get(schema["type"], "")
    names = {
        "minimum": bounds.ge,
        "maximum": bounds.le,
        "pattern": bounds.pattern,
        f"min{counted}": bounds.min_length,
        f"max{counted}": bounds.max_length,
    }
    return schema | {name: value for name, value in names.items() if value is not None}


def _bare_schema(kind: Any) -> Schema:
    """Return the schema of a type without bounds."""
    if kind is Size:
        return {"x-kubernetes-int-or-string": True, "pattern": SIZE_PATTERN, "maxLength": 32}
    if kind is Duration:
        return {"type": "string", "pattern": DURATION_PATTERN, "maxLength": 64}
    if is_part(kind):
        return schema_of(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"type": "string", "enum": [str(member) for member in kind]}
    if get_origin(kind) is list:
        return {"type": "array", "items": _kind_schema(*item_of(kind))}
    if get_origin(kind) is dict:
        return _mapping_schema(get_args(kind)[1])
    plain = {str: "string", bool: "boolean", int: "integer"}[kind]
    return {"type": plain} | ({"format": "int64"} if kind is int else {})


def _mapping_schema(kind: Any) -> Schema:
    if kind is str:
        return {"type": "object", "additionalProperties": {"type": "string"}}
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
