"""Parsing of a manifest file or a custom resource into a valid ``BrokerGroup``, or into a list of its problems.

All problems that can be found at once are reported together, each with the path of its field. An unknown field is
refused with the most similar known name, so that a typo in ``maxDataLossBytes`` does not silently become its default.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_origin

import msgspec

from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.group import API_VERSION, KIND, BrokerGroup, Spec
from gantry_spec.manifest.plain_yaml import Value, read_yaml
from gantry_spec.manifest.quantities import Duration, Size, parse_duration, parse_size
from gantry_spec.manifest.rules import broken_rules
from gantry_spec.manifest.struct_fields import fields_of, is_part, item_of

_PLACE: Final = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
"""An error message of the decoder: its text, and the path of the value if it names one."""

_TOP: Final = {"apiVersion", "kind", "metadata", "spec", "status"}
"""The fields that any resource of Kubernetes may have at its top level."""


def read_group(text: str | bytes) -> BrokerGroup:
    """Return the only group in a file of YAML or JSON. Raises ``ManifestError``."""
    groups = read_groups(text)
    if len(groups) != 1:
        raise ManifestError([Problem("", f"the file holds {len(groups)} groups, expected one")])
    return groups[0]


def read_groups(text: str | bytes) -> list[BrokerGroup]:
    """Return every group in a file of YAML or JSON. Raises ``ManifestError``."""
    documents = read_yaml(text)
    if not documents:
        raise ManifestError([Problem("", "the file is empty")])
    return [group_of(document) for document in documents]


def group_of(document: Value | Mapping[str, Any]) -> BrokerGroup:
    """Return a group from plain values, such as the body of a custom resource. Raises ``ManifestError``."""
    if not isinstance(document, Mapping):
        raise ManifestError([Problem("", f"a {KIND} is a mapping that begins with apiVersion: {API_VERSION}")])
    problems = [
        *head_problems(document, KIND),
        *_metadata_problems(document),
        *unknown_fields(document.get("spec"), Spec, "spec"),
    ]
    if problems:
        raise ManifestError(problems)
    try:
        given = {**document, "spec": without_nulls(document.get("spec") or {}, Spec)}
        group = msgspec.convert(given, BrokerGroup, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        raise ManifestError([problem_of(str(error))]) from error
    broken = list(broken_rules(group.spec))
    if broken:
        raise ManifestError(broken)
    return group


def plain_values(part: msgspec.Struct) -> Any:
    """Return a part as plain values in the format of a manifest, including defaults."""
    return msgspec.to_builtins(part, enc_hook=_encode)


def head_problems(document: Mapping[str, Any], kind: str, *more_fields: str) -> Iterator[Problem]:
    """Yield the problems of a resource's top level. ``more_fields`` are allowed in addition to those of Kubernetes."""
    for name, wanted in (("apiVersion", API_VERSION), ("kind", kind)):
        if document.get(name) != wanted:
            yield Problem(name, f"{document.get(name)!r} is not supported, expected {wanted}")
    known = _TOP.union(more_fields)
    for name in sorted(set(map(str, document)) - known):
        yield unknown_problem(name, name, sorted(known))


def _metadata_problems(document: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(document.get("metadata"), Mapping):
        yield Problem("metadata", "missing: a group needs at least metadata.name")


def unknown_fields(value: object, part: type[msgspec.Struct], path: str) -> Iterator[Problem]:
    """Yield the fields of ``value`` that ``part`` does not have, each with its path below ``path``."""
    if not isinstance(value, Mapping):
        return
    known = {field.name: field for field in fields_of(part)}
    for name, inner in value.items():
        field = known.get(str(name))
        here = f"{path}.{name}" if path else str(name)
        if field is None:
            yield unknown_problem(here, str(name), list(known))
        elif is_part(field.kind):
            yield from unknown_fields(inner, field.kind, here)
        elif get_origin(field.kind) is list and is_part(kind := item_of(field.kind)[0]) and isinstance(inner, list):
            for index, item in enumerate(inner):
                yield from unknown_fields(item, kind, f"{here}[{index}]")


def without_nulls(value: Any, part: type[msgspec.Struct]) -> Any:
    """Return the values of a part without fields that are null, for which the API server sets the defaults, too."""
    if not isinstance(value, Mapping):
        return value
    known = {field.name: field for field in fields_of(part)}
    found = {}
    for name, inner in value.items():
        field = known[name]
        if is_part(field.kind):
            inner = without_nulls(inner, field.kind)
        if inner is not None or field.is_optional:
            found[name] = inner
    return found


def unknown_problem(path: str, name: str, known: list[str]) -> Problem:
    """Return the problem of an unknown field, with the most similar known name."""
    by_lowercase = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(by_lowercase), n=1, cutoff=0.6)
    if near:
        return Problem(path, f"unknown field; did you mean {by_lowercase[near[0]]}?")
    return Problem(path, f"unknown field; expected one of {', '.join(known)}")


def problem_of(message: str) -> Problem:
    """Return the problem in an error message of the decoder."""
    match = _PLACE.match(message)
    assert match is not None, "everything matches"
    text = match["text"].replace("`", "")
    return Problem(match["path"] or "", text[:1].lower() + text[1:])


def decode_value(kind: type, value: object) -> Any:
    """Decode a size or a duration, as the decoder's hook for these types."""
    if kind is Size:
        return parse_size(value)
    if kind is Duration:
        return parse_duration(value)
    raise NotImplementedError(f"no decoder for {kind}")


def _encode(value: object) -> Any:
    if isinstance(value, Size | Duration):
        return str(value)
    raise NotImplementedError(f"no encoder for {type(value)}")
