"""YAML as manifests need it: mappings, lists and plain values, in bounded size, and nothing that can surprise.

Anchors, aliases and tags are refused, and so is a key that comes twice: the second would silently win. ``yes`` and
``on`` stay text; only ``true`` and ``false`` are booleans. What JSON can say is all that comes out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

import yaml

from gantry_spec.manifest.errors import ManifestError, Problem

BYTES_MAX: Final = 1 << 20
"""Of a file. Kubernetes stores no object beyond 1.5 MiB."""
DEPTH_MAX: Final = 32
DOCUMENTS_MAX: Final = 100

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_TAGS: Final = frozenset({"null", "bool", "int", "float", "str", "timestamp", "merge", "value"})


def read_yaml(text: str | bytes) -> list[Value]:
    """Every document in ``text`` that is not empty. Raises ``ManifestError``."""
    if len(text) > BYTES_MAX:
        raise _problem(f"it has {len(text)} bytes, and at most {BYTES_MAX} are read")
    try:
        nodes = list(_nodes(text))
    except RecursionError:
        raise _problem(f"it is nested deeper than {DEPTH_MAX} levels") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise _problem(f"it is no YAML: {' '.join(str(error).split())}") from error
    if len(nodes) > DOCUMENTS_MAX:
        raise _problem(f"it holds {len(nodes)} documents, and at most {DOCUMENTS_MAX} are read")
    seen: set[int] = set()
    return [_value(node, 0, seen) for node in nodes]


def _nodes(text: str | bytes) -> Iterator[yaml.Node]:
    found: Iterator[yaml.Node | None] = yaml.compose_all(text, Loader=yaml.SafeLoader)
    return (node for node in found if node is not None)


def _value(node: yaml.Node, depth: int, seen: set[int]) -> Value:
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise _problem(f"line {line}: anchors and aliases are not read here; write it twice")
    seen.add(id(node))
    if depth > DEPTH_MAX:
        raise _problem(f"line {line}: it is nested deeper than {DEPTH_MAX} levels")
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(item, depth + 1, seen) for item in node.value]
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(node, depth, seen)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, line)
    raise _problem(f"line {line}: {node.tag} is not read here")


def _mapping(node: yaml.MappingNode, depth: int, seen: set[int]) -> Value:
    result: dict[str, Value] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise _problem(f"line {line}: a key is a word, not a list or mapping")
        key = str(key_node.value)
        if key in result or (key == "<<" and key_node.style is None):
            why = "comes twice" if key in result else "merges are not read here"
            raise _problem(f"line {line}: {key}: {why}")
        result[key] = _value(value_node, depth + 1, seen)
    return result


def _scalar(node: yaml.ScalarNode, line: int) -> Value:
    kind, text = node.tag.removeprefix("tag:yaml.org,2002:"), str(node.value)
    if kind not in _TAGS:
        raise _problem(f"line {line}: {node.tag} is not read here")
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float" and (number := _finite(text)) is not None:
        return number
    return text


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _problem(text: str) -> ManifestError:
    return ManifestError([Problem("", text)])
