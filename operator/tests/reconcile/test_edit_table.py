"""The table of edits is complete, and each row matches the rendered objects: which ones change, and whether pods do.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from edit_world.leaves import leaves, spec_schema, without_leaves, without_rows
from edit_world.making import CLAIM
from edit_world.reports import name_of, object_named, object_value, value_in
from edit_world.row import Effect, Fields, Row, Source, values_at
from edit_world.rows_of_brokers import LIVE_SETTINGS
from edit_world.table import ROWS
from objects_scene import EVERYTHING, broker_sets, facts, group, of_kind, rendered, template_hash

from gantry_broker.setting_keys import effective_settings
from gantry_broker.settings import BrokerSettings
from gantry_operator.objects import ShardFacts, configuration
from gantry_operator.objects.base import Object
from gantry_operator.objects.configuration import LIVE_KEYS
from gantry_spec.manifest.changes import check_changes
from gantry_spec.manifest.crd import crd
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.rules import ARCHIVE_KEYS, RESERVED_KEYS

PATHS = {row.path for row in ROWS}
EDITED = [row for row in ROWS if row.effect is not Effect.REFUSED]
REFUSED = [row for row in ROWS if row.effect is Effect.REFUSED]
RECREATES_PODS = {Effect.ROLL}
"""The effects with which the pods of brokers are recreated."""

FIXED_FOR_EVER = ("selector", "serviceName", "podManagementPolicy")
"""Fields of a StatefulSet that Kubernetes does not let anyone change."""


def group_with(row: Row, fields: Fields) -> BrokerGroup:
    """Return a group with the fields of a row before or after the edit."""
    return group(**row.spec(fields))


def objects_before_and_after(row: Row) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
    """Return the objects before and after the edit of a row."""
    return rendered(group_with(row, row.before)), rendered(group_with(row, row.after))


def test_every_leaf_of_the_crd_has_a_row() -> None:
    """A new field of the spec needs a row that says how its edit takes effect and what reports it."""
    assert without_rows(crd(), PATHS) == set()
    assert without_leaves(crd(), PATHS) == set()


@pytest.mark.parametrize("path", sorted(PATHS))
def test_leaf_without_a_row_is_detected(path: str) -> None:
    """The twin: whichever row is missing, its leaf is named."""
    assert without_rows(crd(), PATHS - {path}) == {path}


@pytest.mark.parametrize(
    "place",
    ["", "replication", "access.external", "topics[]", "template", "proxy.limits"],
    ids=lambda place: place or "spec",
)
def test_new_leaf_is_detected_everywhere(place: str) -> None:
    """The twin: a field added to any part or item of a list is a leaf without a row; a removed one is a surplus row."""
    definition = copy.deepcopy(crd())
    part: Any = spec_schema(definition)
    for name in filter(None, place.split(".")):
        part = part["properties"][name.removesuffix("[]")]
        part = part["items"] if name.endswith("[]") else part
    part["properties"]["novelty"] = {"type": "string"}
    gone = next(
        name for name, inner in part["properties"].items() if "properties" not in inner and "items" not in inner
    )
    del part["properties"][gone]

    prefix = f"{place}." if place else ""
    assert without_rows(definition, PATHS) == {f"{prefix}novelty"}
    assert without_leaves(definition, PATHS) == {f"{prefix}{gone}"}


def test_walk_covers_parts_and_items() -> None:
    """It finds a sample of each kind of leaf, so that a walk that finds too little does not agree with the table."""
    found = set(leaves(spec_schema(crd())))

    assert {"shards", "access.external.type", "topics[].queues", "nameServers.addresses", "broker"} <= found
    assert {"template.tolerations", "template.affinity", "resources", "access.external.annotations"} <= found
    assert not {"topics", "template", "access", "access.external"} & found
    assert {"proxy.port", "proxy.service.type", "proxy.limits.clients", "proxy.template.affinity"} <= found
    assert len(found) >= 70


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row_edits_only_its_field_and_names_its_reports(row: Row) -> None:
    """Both sides differ at that leaf alone (in a list, also beside it), and so do all values that report it."""
    if not row.refusal:
        assert row.shown, "no report shows the edit"
        before, after = group_with(row, row.before).spec, group_with(row, row.after).spec
        assert before != after
    assert values_at(row.before, row.path) != values_at(row.after, row.path)
    assert {leaf for leaf in PATHS if values_at(row.before, leaf) != values_at(row.after, leaf)} <= {
        row.path,
        *(leaf for leaf in PATHS if leaf.partition("[]")[0] == row.path.partition("[]")[0]),
    }
    for shown in row.shown:
        assert shown.before != shown.after, shown


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_edit_changes_exactly_the_objects_of_its_row(row: Row) -> None:
    """No other object changes, appears or is deleted."""
    old, new = ({name_of(one): one for one in objects} for objects in objects_before_and_after(row))

    found = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    found |= {f"+{name}" for name in new.keys() - old.keys()} | {f"-{name}" for name in old.keys() - new.keys()}

    assert found == row.changes


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_edit_restarts_pods_only_as_in_the_table(row: Row) -> None:
    """The template hash changes exactly for the rows with a restart of brokers."""
    hashes = [template_hash(group_with(row, fields)) for fields in (row.before, row.after)]

    assert (hashes[0] != hashes[1]) is (row.effect in RECREATES_PODS)
    if row.effect is Effect.HOT:
        assert row.changes == {"ConfigMap/orders-0"}, "a live edit changes more than the mounted ConfigMap"
    if row.effect is Effect.DECIDED:
        assert row.changes <= {"PrometheusRule/orders"}, "an edit of a decision changes more than alerts"


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_rendered_objects_have_the_values_of_the_row(row: Row) -> None:
    """The values of pods and objects that a row promises are rendered before and after."""
    for objects, is_after in zip(objects_before_and_after(row), (False, True), strict=True):
        template = broker_sets(objects)["orders-0-master"]["spec"]["template"]
        for shown in row.shown:
            wanted = shown.after if is_after else shown.before
            if shown.source is Source.POD:
                assert value_in(template, shown.key) == wanted, shown
            if shown.source is Source.OBJECT and not shown.key.startswith(CLAIM):
                found = object_named(objects, shown.key.partition(":")[0])
                assert object_value(found, shown.key) == wanted, shown


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_invalid_edit_is_refused_without_an_api_server(row: Row) -> None:
    """The reader, or the comparison of two manifests, gives the reason."""
    old = group_with(row, row.before)
    try:
        problems = [str(problem) for problem in check_changes(old, group_with(row, row.after))]
    except ManifestError as error:
        problems = [str(error)]

    assert any(f"spec.{row.path}" in problem for problem in problems), problems


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_no_edit_changes_the_names_that_a_stateful_set_gives(row: Row) -> None:
    """Its selector, its Service and the metadata of its claims, and so its volumes and addresses, never change."""
    old, new = (of_kind(objects, "StatefulSet") for objects in objects_before_and_after(row))

    for name in old.keys() & new.keys():
        before, after = old[name]["spec"], new[name]["spec"]
        for fixed in FIXED_FOR_EVER:
            assert before[fixed] == after[fixed], (name, fixed)
        claims = [[claim["metadata"] for claim in each.get("volumeClaimTemplates", [])] for each in (before, after)]
        assert claims[0] == claims[1]


def test_every_live_key_is_tested() -> None:
    """Each key of the mounted file has an edit by `broker`, except the one that `storage.reservedTime` controls."""
    assert LIVE_SETTINGS.keys() == LIVE_KEYS - {"fileReservedTime"}


OVERRIDABLE_KEYS = {"shutdownTimeout", "maxMessageSize"}
"""The rendered keys that a line of `broker` may override."""


def test_line_of_a_broker_cannot_override_a_field() -> None:
    """Keys that come from other fields, or from the pod, are refused there and not silently dropped."""
    buffered = {"medium": "Memory", "segmentSize": "1Mi"}
    one = group(**EVERYTHING | {"broker": {}, "writeBuffer": buffered})
    lines = f"{configuration.startup_conf(one, 0)}{configuration.live_conf(one)}".splitlines()
    own = {"brokerId", "brokerIP1", "brokerMasterIP"}

    assert {line.partition("=")[0] for line in lines} | own <= RESERVED_KEYS | ARCHIVE_KEYS | OVERRIDABLE_KEYS
    assert not RESERVED_KEYS & OVERRIDABLE_KEYS
    assert effective_settings(BrokerSettings()).keys() >= RESERVED_KEYS, "a reserved key is no setting"


def test_observed_state_does_not_change_templates() -> None:
    """Roles, counts and machines change; pods depend only on the spec and the operator's own settings."""
    one = group()
    plain = template_hash(one, facts())

    seen = facts(
        shards=(ShardFacts(number=0, slaves=3, slaves_acknowledging=0), ShardFacts(number=5)), is_hibernated=True
    )
    assert template_hash(one, seen) == plain
    assert template_hash(one, facts(image="example.com/gantry@sha256:5678")) != plain


def test_both_stateful_sets_of_a_shard_have_the_same_template() -> None:
    """So the hash shows the settings of a member, whichever StatefulSet it is from."""
    sets = of_kind(rendered(group()), "StatefulSet")
    hashes = {
        sets[name]["spec"]["template"]["metadata"]["annotations"]["gantry.dev/template"]
        for name in ("orders-0-master", "orders-0-slave")
    }

    assert len(hashes) == 1
