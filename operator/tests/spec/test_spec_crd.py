"""The CustomResourceDefinition matches the structs: descriptions, bounds, defaults and rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gantry_spec.manifest.changes import FIXED
from gantry_spec.manifest.crd import COLUMNS, crd, group_schema
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.reading import plain_values
from gantry_spec.manifest.rules import RULES
from gantry_spec.manifest.struct_fields import fields_of, walk_fields
from gantry_spec.pipelines.parts import Engine, PipelineSpec, Transport

SELF = re.compile(r"\b(?:self|oldSelf)((?:\.[a-zA-Z]+)+)(\()?")


def schemas_in(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a schema and every schema below it, with their paths."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas_in(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas_in(schema["items"], f"{path}[]")


def spec_schema() -> dict[str, Any]:
    """Return the schema of ``spec``."""
    schema: dict[str, Any] = group_schema()["properties"]["spec"]
    return schema


def filled(schema: dict[str, Any], value: Any) -> Any:
    """Return a value with the defaults that an API server fills in."""
    if schema.get("type") == "object" and isinstance(value, dict):
        known = schema.get("properties", {})
        result = dict(value)
        for name, inner in known.items():
            if name not in result and "default" in inner:
                result[name] = inner["default"]
            if name in result:
                result[name] = filled(inner, result[name])
        return result
    return value


def test_the_schema_is_structural() -> None:
    """Every field has one type or is a size, there is no `anyOf`, and only settings of pods preserve unknown fields."""
    for path, schema in schemas_in(group_schema()):
        assert ("type" in schema) != schema.get("x-kubernetes-int-or-string", False), path
        assert not {"anyOf", "oneOf", "allOf", "$ref", "const"} & schema.keys(), path
    keeping = [path for path, schema in schemas_in(spec_schema()) if schema.get("x-kubernetes-preserve-unknown-fields")]
    assert keeping == [
        ".retention.server.resources",
        ".proxy.resources",
        ".proxy.template.tolerations[]",
        ".proxy.template.affinity",
        ".proxy.template.topologySpreadConstraints[]",
        ".resources",
        ".template.tolerations[]",
        ".template.affinity",
        ".template.topologySpreadConstraints[]",
    ]


def test_every_field_has_a_description() -> None:
    """`kubectl explain` shows the text that stands below the field in the source."""
    for path, field in walk_fields(Spec, "spec"):
        assert field.description.endswith((".", ":")), f"{path} has no sentence"
    bare = [
        path
        for path, schema in schemas_in(group_schema())
        if path.startswith((".spec.", ".status.")) and not path.endswith("[]") and not schema.get("description")
    ]
    assert bare == []


def test_descriptions_name_the_default_transport_and_all_reserved_settings() -> None:
    """A user must not have to guess what `auto` does, nor why a setting is refused that no field has."""
    pipeline = {field.name: field.description for field in fields_of(PipelineSpec)}
    engine = {field.name: field.description for field in fields_of(Engine)}
    group = {field.name: field.description for field in fields_of(Spec)}

    assert [one for one in Transport if f"`{one}`" not in pipeline["transport"]] == []
    for description in (engine["sparkConf"], group["broker"]):
        assert "Settings that other fields or Gantry itself control are refused." in description


def test_the_defaults_of_the_schema_are_those_of_the_structs() -> None:
    """An empty spec with the API server's defaults equals the spec of an empty file."""
    served = filled(spec_schema(), {})
    ours = plain_values(Spec())
    ours["nameServers"].pop("replicas")
    for name in ("inSyncReplicas", "ack"):
        ours["replication"].pop(name)
    for name in ("local", "archive"):
        ours["retention"].pop(name)

    assert served == ours


@pytest.mark.parametrize("path", ["shards", "slaves"])
def test_bounds_are_in_the_schema(path: str) -> None:
    """The API server refuses what the struct refuses."""
    field = next(one for one in fields_of(Spec) if one.name == path)
    schema = spec_schema()["properties"][path]

    assert field.bounds is not None
    assert (schema["minimum"], schema["maximum"]) == (field.bounds.ge, field.bounds.le)


def test_every_rule_uses_existing_fields() -> None:
    """A renamed field must be renamed in the rules, and optional fields need `has`."""
    for rule in (*RULES, *FIXED):
        for names, call in SELF.findall(rule.cel):
            parts = names.strip(".").split(".")
            schema = spec_schema()
            for name in parts[: -1 if call else None]:
                assert name in schema["properties"], f"{rule.path}: {rule.cel}"
                schema = schema["properties"][name]
    optional = ("self.replication.inSyncReplicas", "self.replication.ack ", "self.nameServers.replicas")
    for rule in RULES:
        for name in optional:
            assert name not in rule.cel or "has(" in rule.cel, rule.cel


def test_every_rule_but_uniqueness_is_in_the_schema() -> None:
    """Duplicate names are refused by the type of the lists."""
    served = {one["rule"] for one in spec_schema()["x-kubernetes-validations"]}

    assert [rule.path for rule in RULES if rule.cel not in served] == ["spec.topics", "spec.groups"]
    assert all(fixed.cel in served for fixed in FIXED)
    for name in ("topics", "groups"):
        assert spec_schema()["properties"][name]["x-kubernetes-list-map-keys"] == ["name"]


def test_the_resource_can_be_listed_and_scaled() -> None:
    """It has a short name, columns of status fields, and the subresources scale and status."""
    document = crd()
    [version] = document["spec"]["versions"]

    assert document["metadata"]["name"] == "brokergroups.gantry.dev"
    assert document["spec"]["names"]["shortNames"] == ["bg"]
    assert [name for name, *_ in COLUMNS][:5] == ["Master", "Epoch", "Ready", "Lag", "At-Risk"]
    status = group_schema()["properties"]["status"]["properties"]
    columns = [column["jsonPath"].removeprefix(".status.") for column in version["additionalPrinterColumns"]]
    assert {name for name in columns if not name.startswith(".metadata")} <= status.keys()
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.shards"
    assert {"shards", "selector"} <= status.keys()
