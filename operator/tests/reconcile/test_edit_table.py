"""The table of edits is whole, and what it says of each edit is what is rendered: which objects, and whether pods."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from edit_world.leaves import leaves, spec_schema, without_leaves, without_rows
from edit_world.making import CLAIM
from edit_world.reports import name_of, object_named, object_value, value_in
from edit_world.row import Effect, Fields, Row, Source, values_at
from edit_world.rows_of_brokers import LIVE
from edit_world.table import ROWS
from objects_scene import EVERYTHING, broker_sets, facts, group, of_kind, rendered, template_hash

from gantry_broker.setting_keys import effective_settings
from gantry_broker.settings import BrokerSettings
from gantry_operator.objects import ShardFacts, configuration
from gantry_operator.objects.base import Object
from gantry_operator.objects.configuration import LIVE_KEYS
from gantry_spec.manifest.changes import changes
from gantry_spec.manifest.crd import crd
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.rules import OURS

PATHS = {row.path for row in ROWS}
EDITED = [row for row in ROWS if row.effect is not Effect.REFUSED]
REFUSED = [row for row in ROWS if row.effect is Effect.REFUSED]
STARTS_PODS = {Effect.ROLL}
FIXED_FOR_EVER = ("selector", "serviceName", "podManagementPolicy")


def side(row: Row, fields: Fields) -> BrokerGroup:
    """A group with one side of a row."""
    return group(**row.spec(fields))


def both(row: Row) -> tuple[tuple[Object, ...], tuple[Object, ...]]:
    """What is rendered before and after."""
    return rendered(side(row, row.before)), rendered(side(row, row.after))


def test_every_leaf_of_the_definition_has_a_row() -> None:
    """A field that is added to the spec says here how its edit takes effect and what shows it; one that goes, goes."""
    assert without_rows(crd(), PATHS) == set()
    assert without_leaves(crd(), PATHS) == set()


@pytest.mark.parametrize("path", sorted(PATHS))
def test_a_leaf_without_its_rows_is_found(path: str) -> None:
    """The twin: whichever row is left out, its leaf is named."""
    assert without_rows(crd(), PATHS - {path}) == {path}


@pytest.mark.parametrize(
    "place", ["", "replication", "access.external", "topics[]", "template"], ids=lambda place: place or "spec"
)
def test_a_new_leaf_is_found_wherever_it_is(place: str) -> None:
    """The twin: a field added to any part, also to items of lists, is a leaf without a row; one removed is a row."""
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


def test_the_walk_goes_into_parts_and_items() -> None:
    """A sample of each kind of leaf, so that a walk that finds too little does not agree with a table that has it."""
    found = set(leaves(spec_schema(crd())))

    assert {"shards", "access.external.type", "topics[].queues", "nameServers.addresses", "broker"} <= found
    assert {"template.tolerations", "template.affinity", "resources", "access.external.annotations"} <= found
    assert not {"topics", "template", "access", "access.external"} & found
    assert len(found) >= 44


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_edits_its_field_and_says_what_shows_it(row: Row) -> None:
    """Both sides differ at that leaf and nowhere else, and so does every value that is to show it."""
    if not row.refusal:
        assert row.shown, "something reports it"
        before, after = side(row, row.before).spec, side(row, row.after).spec
        assert before != after
    assert values_at(row.before, row.path) != values_at(row.after, row.path)
    assert {leaf for leaf in PATHS if values_at(row.before, leaf) != values_at(row.after, leaf)} <= {
        row.path,
        *(leaf for leaf in PATHS if leaf.partition("[]")[0] == row.path.partition("[]")[0]),
    }
    for shown in row.shown:
        assert shown.before != shown.after, shown


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_an_edit_changes_just_these_objects(row: Row) -> None:
    """Objects that change, appear and go are those of the row, and no others."""
    old, new = ({name_of(one): one for one in objects} for objects in both(row))

    found = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    found |= {f"+{name}" for name in new.keys() - old.keys()} | {f"-{name}" for name in old.keys() - new.keys()}

    assert found == row.changes


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_an_edit_starts_pods_again_only_if_it_must(row: Row) -> None:
    """The hash of the pods' template changes exactly where the table says that brokers are started again."""
    hashes = [template_hash(side(row, fields)) for fields in (row.before, row.after)]

    assert (hashes[0] != hashes[1]) is (row.effect in STARTS_PODS)
    if row.effect is Effect.HOT:
        assert row.changes == {"ConfigMap/orders-0"}, "which is mounted, and changes under the pod"
    if row.effect is Effect.DECIDED:
        assert row.changes <= {"PrometheusRule/orders"}, "nobody else needs to know"


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_what_is_rendered_says_what_will_be_seen(row: Row) -> None:
    """Values of pods and objects that a row promises are in what is rendered, before and after."""
    for objects, is_after in zip(both(row), (False, True), strict=True):
        template = broker_sets(objects)["orders-0-master"]["spec"]["template"]
        for shown in row.shown:
            wanted = shown.after if is_after else shown.before
            if shown.source is Source.POD:
                assert value_in(template, shown.key) == wanted, shown
            if shown.source is Source.OBJECT and not shown.key.startswith(CLAIM):
                found = object_named(objects, shown.key.partition(":")[0])
                assert object_value(found, shown.key) == wanted, shown


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_an_edit_that_cannot_be_is_refused_by_us_too(row: Row) -> None:
    """Where no API server asks: the reader or the comparison of two manifests says why."""
    old = side(row, row.before)
    try:
        problems = [str(problem) for problem in changes(old, side(row, row.after))]
    except ManifestError as error:
        problems = [str(error)]

    assert any(f"spec.{row.path}" in problem for problem in problems), problems


@pytest.mark.parametrize("row", EDITED, ids=str)
def test_no_edit_renames_anything(row: Row) -> None:
    """What a StatefulSet is found by, and so its pods' volumes and addresses, is the same for ever."""
    old, new = (of_kind(objects, "StatefulSet") for objects in both(row))

    for name in old.keys() & new.keys():
        before, after = old[name]["spec"], new[name]["spec"]
        for fixed in FIXED_FOR_EVER:
            assert before[fixed] == after[fixed], (name, fixed)
        claims = [[claim["metadata"] for claim in each.get("volumeClaimTemplates", [])] for each in (before, after)]
        assert claims[0] == claims[1]


def test_every_line_that_a_running_broker_takes_is_tried() -> None:
    """Those that no other field decides."""
    assert LIVE.keys() == LIVE_KEYS - {"fileReservedTime"}


SAID_TWICE = {"shutdownTimeout", "maxMessageSize"}
"""Keys that are rendered, and that a line of `broker` may say otherwise."""


def test_no_line_of_a_broker_undoes_what_a_field_decides() -> None:
    """Whatever is rendered from other fields, or known to the pod alone, is refused there and not silently dropped."""
    buffered = {"medium": "Memory", "segmentSize": "1Mi"}
    one = group(**EVERYTHING | {"broker": {}, "writeBuffer": buffered})
    lines = f"{configuration.cold_conf(one, 0)}{configuration.live_conf(one)}".splitlines()
    own = {"brokerId", "brokerIP1", "brokerMasterIP"}

    assert {line.partition("=")[0] for line in lines} | own <= OURS | SAID_TWICE
    assert not OURS & SAID_TWICE
    assert effective_settings(BrokerSettings()).keys() >= OURS, "and each is a key that there is"


def test_what_is_seen_of_a_group_changes_no_template() -> None:
    """Roles, counts and machines come and go; pods are made of the spec and the operator's own settings."""
    one = group()
    plain = template_hash(one, facts())

    seen = facts(shards=(ShardFacts(number=0, slaves=3, slaves_in_sync=0), ShardFacts(number=5)), is_hibernated=True)
    assert template_hash(one, seen) == plain
    assert template_hash(one, facts(image="example.com/gantry@sha256:5678")) != plain


def test_both_homes_of_a_shard_are_made_of_one_template() -> None:
    """So a hash says what a member was started with, whichever StatefulSet it is from."""
    sets = of_kind(rendered(group()), "StatefulSet")
    hashes = {
        sets[name]["spec"]["template"]["metadata"]["annotations"]["gantry.dev/template"]
        for name in ("orders-0-master", "orders-0-slave")
    }

    assert len(hashes) == 1
