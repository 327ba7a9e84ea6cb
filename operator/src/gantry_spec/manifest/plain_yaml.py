"""A strict subset of YAML for manifests: mappings, lists and plain values of bounded size.

Aliases and tags of other types are refused, and so are duplicate keys, of which the second would silently win.
``yes`` and ``on`` are text; only ``true`` and ``false`` are booleans. The result contains only values that JSON has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

import yaml

from gantry_spec.manifest.errors import ManifestError, Problem

BYTES_MAX: Final = 1 << 20
"""The largest file that is read. Kubernetes stores no object beyond 1.5 MiB."""
DEPTH_MAX: Final = 32
DOCUMENTS_MAX: Final = 100

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_TAGS: Final = frozenset({"null", "bool", "int", "float", "str", "timestamp", "merge", "value"})


def read_yaml(text: str | bytes) -> list[Value]:
    """Return every document in ``text`` that is not empty. Raises ``ManifestError``."""
    if len(text) > BYTES_MAX:
        raise _problem(f"the file has {len(text)} bytes, but at most {BYTES_MAX} are allowed")
    try:
        nodes = list(_nodes(text))
    except RecursionError:
        raise _problem(f"the file is nested deeper than {DEPTH_MAX} levels") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise _problem(f"invalid YAML: {' '.join(str(error).split())}") from error
    if len(nodes) > DOCUMENTS_MAX:
        raise _problem(f"the file holds {len(nodes)} documents, but at most {DOCUMENTS_MAX} are allowed")
    visited: set[int] = set()
    return [_value(node, 0, visited) for node in nodes]


def _nodes(text: str | bytes) -> Iterator[yaml.Node]:
    found: Iterator[yaml.Node | None] = yaml.compose_all(text, Loader=yaml.SafeLoader)
    return (node for node in found if node is not None)


def _value(node: yaml.Node, depth: int, visited: set[int]) -> Value:
    line = node.start_mark.line + 1
    if id(node) in visited:
        raise _problem(f"line {line}: anchors and aliases are not supported; repeat the value")
    visited.add(id(node))
    if depth > DEPTH_MAX:
        raise _problem(f"line {line}: nested deeper than {DEPTH_MAX} levels")
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(item, depth + 1, visited) for item in node.value]
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        return _mapping(node, depth, visited)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, line)
    raise _problem(f"line {line}: the tag {node.tag} is not supported")


def _mapping(node: yaml.MappingNode, depth: int, visited: set[int]) -> Value:
    result: dict[str, Value] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise _problem(f"line {line}: a key must be text, not a list or mapping")
        key = str(key_node.value)
        if key in result or (key == "<<" and key_node.style is None):
            why = "duplicate key" if key in result else "merge keys are not supported"
            raise _problem(f"line {line}: {key}: {why}")
        result[key] = _value(value_node, depth + 1, visited)
    return result


def _scalar(node: yaml.ScalarNode, line: int) -> Value:
    kind, text = node.tag.removeprefix("tag:yaml.org,2002:"), str(node.value)
    if kind not in _TAGS:
        raise _problem(f"line {line}: the tag {node.tag} is not supported")
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
