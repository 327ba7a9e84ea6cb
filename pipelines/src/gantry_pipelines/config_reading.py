"""From a file and `--set` to a configuration that can be used, or to everything that is wrong with it, field by field.

A field that nobody knows is refused with the nearest name that is known, because a typing error must not become a
default. YAML is read without what can surprise: no anchors, no tags, no key twice, and `yes` is a word.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, final

import msgspec
import yaml

from gantry_pipelines.amounts import Duration, Size, parse_duration, parse_size
from gantry_pipelines.config import PipelineConfig

API_VERSION: Final = "gantry.dev/v1alpha1"
BYTES_MAX: Final = 1 << 20

C = TypeVar("C", bound=PipelineConfig)
_PLACE: Final = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")
_TOP: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


@final
class ConfigError(Exception):
    """This configuration cannot be used: lists every problem that was found. Mend the file, or the --set."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def read_config(text: str | bytes, config_type: type[C], kind: str, settings: Sequence[str] = ()) -> C:
    """A configuration out of a file's text, with `a.b=value` put over it. Raises ``ConfigError``.

    The text is a whole resource of that kind or its `spec` alone, as YAML or JSON; `here` stands in the spec, or
    beside it in a whole resource.
    """
    document = _spec_of(_yaml(text), kind)
    for setting in settings:
        _put(document, setting)
    return config_of(document, config_type)


def config_of(document: Mapping[str, Any], config_type: type[C]) -> C:
    """A configuration out of plain values. Raises ``ConfigError``."""
    problems = list(_unknown(document, config_type, ""))
    if problems:
        raise ConfigError(problems)
    try:
        return msgspec.convert(document, config_type, dec_hook=_decode)
    except msgspec.ValidationError as error:
        match = _PLACE.match(str(error))
        assert match is not None, "everything matches"
        words = match["text"].replace("`", "")
        words = words[:1].lower() + words[1:]
        raise ConfigError([f"{match['path']}: {words}" if match["path"] else words]) from error


def _spec_of(document: object, kind: str) -> dict[str, Any]:
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError([f"it is no mapping: a configuration is a {kind}, or what stands below its spec"])
    if not document.keys() & {"apiVersion", "kind", "spec"}:
        return document
    problems = [
        f"{name}: it is {document.get(name)!r}, and {wanted} is read here"
        for name, wanted in (("apiVersion", API_VERSION), ("kind", kind))
        if document.get(name) != wanted
    ]
    problems += [
        _unknown_text(name, name, sorted(_TOP | {"here"})) for name in sorted(document.keys() - _TOP - {"here"})
    ]
    spec = document.get("spec") or {}
    if not isinstance(spec, dict):
        problems.append("spec: it is no mapping")
    if problems:
        raise ConfigError(problems)
    return {**spec, "here": document["here"]} if "here" in document else dict(spec)


def _put(document: dict[str, Any], setting: str) -> None:
    """`a.b=value` into a document; the value is read as YAML."""
    path, separator, text = setting.partition("=")
    names = path.removeprefix("spec.").split(".")
    if not separator or not all(names):
        raise ConfigError([f"--set {setting}: write it like topics.include=[orders] or trigger=30s"])
    inner = document
    for index, name in enumerate(names[:-1]):
        held = inner.setdefault(name, {})
        if not isinstance(held, dict):
            raise ConfigError([f"--set {setting}: {'.'.join(names[: index + 1])} is no mapping"])
        inner[name] = inner = dict(held)
    inner[names[-1]] = _yaml(text)


def _unknown(value: object, part: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Fields that nobody knows."""
    if not isinstance(value, Mapping):
        return
    known = {field.encode_name: field for field in msgspec.structs.fields(part)}
    for name, inner in value.items():
        here = f"{path}.{name}" if path else str(name)
        field = known.get(str(name))
        if field is None:
            yield _unknown_text(here, str(name), list(known))
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _unknown(inner, field.type, here)


def _unknown_text(path: str, name: str, known: list[str]) -> str:
    by_small_letters = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(by_small_letters), n=1, cutoff=0.6)
    if near:
        return f"{path}: no such field; did you mean {by_small_letters[near[0]]}?"
    return f"{path}: no such field; there are {', '.join(known)}"


def _decode(kind: type, value: object) -> Any:
    if kind is Size:
        return parse_size(value)
    if kind is Duration:
        return parse_duration(value)
    raise NotImplementedError(f"nothing else is decoded by hand: {kind}")


def _yaml(text: str | bytes) -> Any:
    if len(text) > BYTES_MAX:
        raise ConfigError([f"it has {len(text)} bytes, and at most {BYTES_MAX} are read"])
    try:
        found: Iterator[yaml.Node | None] = yaml.compose_all(text, Loader=yaml.SafeLoader)
        nodes = [node for node in found if node is not None]
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError([f"it is no YAML: {' '.join(str(error).split())}"]) from error
    if len(nodes) > 1:
        raise ConfigError([f"it holds {len(nodes)} documents, and one is wanted"])
    return _value(nodes[0], set()) if nodes else None


def _value(node: yaml.Node, seen: set[int]) -> Any:
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise ConfigError([f"line {line}: anchors and aliases are not read here; write it twice"])
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return [_value(item, seen) for item in node.value]
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in mapping:
                raise ConfigError([f"line {key.start_mark.line + 1}: {key.value}: a key is a word, and comes once"])
            mapping[key.value] = _value(value, seen)
        return mapping
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node.tag.removeprefix("tag:yaml.org,2002:"), str(node.value))
    raise ConfigError([f"line {line}: {node.tag} is not read here"])


def _scalar(tag: str, text: str) -> Any:
    if tag == "null":
        return None
    if tag == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if tag == "int" and _INTEGER.fullmatch(text):
        return int(text)
    return text
