"""`gantry explain --capacity`: what the pods of a group need, and whether the nodes of a cluster have room for them.

The needs are read from the objects that the operator would apply for the manifest. With a cluster, the pods are placed
on its nodes by the rules of the scheduler (``gantry_spec.capacity``). Pods of the group that run already stay there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from gantry_cli.errors import CliError, InvalidInput
from gantry_cli.kube.api_errors import printable
from gantry_cli.kube.capacity_documents import (
    CapacityDocument,
    CapacityStep,
    CapacityTotals,
    CapacityVerdict,
    NodeCapacity,
    PodNeeds,
    PodPlacement,
)
from gantry_cli.kube.cluster import Cluster, Target, connect, find_group
from gantry_cli.kube.cluster_capacity import (
    ClusterObjects,
    known_runtime_classes,
    read_cluster,
    storage_of,
    storage_reasons,
    volumes_of,
)
from gantry_cli.local.manifest_changes import read_manifest
from gantry_cli.output import OutputFormat, show, table
from gantry_cli.progress import spinner
from gantry_cli.text import plural
from gantry_operator.objects import Facts, ImpossibleResources, render
from gantry_spec.capacity.needs import (
    Totals,
    Workload,
    runtime_class_names,
    totals_of,
    with_runtime_classes,
    workloads_of,
)
from gantry_spec.capacity.nodes import Nodes, reservations
from gantry_spec.capacity.plan import Plan, make_plan
from gantry_spec.capacity.resources import (
    CPU,
    MEMORY,
    PODS,
    STORAGE,
    Amounts,
    InvalidQuantity,
    amount_text,
    amounts_of,
    quantities,
    short_text,
    sorted_names,
)
from gantry_spec.manifest import BrokerGroup, ManifestError
from gantry_spec.manifest.group import SHARDS_MAX, SLAVES_MAX
from gantry_spec.manifest.reading import group_of

ANY_NAMESPACE: Final = "default"
"""The namespace for which objects are rendered where no cluster is read. It changes no amount."""

ESTIMATE: Final = "This is an estimate; the scheduler decides."


@final
class _Judgement(NamedTuple):
    """The plan of a group on the nodes of a cluster, and the verdict."""

    verdict: CapacityVerdict
    reasons: Sequence[str] = ()
    plan: Plan | None = None


def show_manifest_capacity(path: Path, form: OutputFormat) -> None:
    """Show what a manifest needs, without a cluster. Raises CliError."""
    group, _ = read_manifest(path)
    workloads = _workloads(group, ANY_NAMESPACE, {})
    unknown = _Judgement(CapacityVerdict.UNKNOWN)
    steps = [_step(change, workloads, larger, unknown) for change, larger in _larger(group, ANY_NAMESPACE, {})]
    document = _document(group, workloads, steps, unknown)
    show(form, document, lambda: _render(document))


def show_cluster_capacity(target: Target, name: str | None, path: Path | None, form: OutputFormat) -> None:
    """Show what a group needs, and whether it fits into the cluster; with ``path``, for the manifest of that file.

    Exits with 1 if it does not fit. Raises CliError.
    """
    given = None if path is None else read_manifest(path)[0]
    if given is not None and name not in (None, given.metadata.name):
        raise InvalidInput(f"{path} has the group {given.metadata.name}, not {name}", f"name bg/{given.metadata.name}")
    place = "" if given is None else given.metadata.namespace
    if target.namespace and place not in ("", target.namespace):
        raise InvalidInput(f"{path} has the namespace {place}, not {target.namespace}", "leave out the namespace")
    cluster = connect(target if not place else target._replace(namespace=place))
    group = given if given is not None else _group_in(cluster, name)
    with spinner("reading the cluster"):
        has_class = bool(runtime_class_names(_rendered(group, cluster.namespace)))
        objects = read_cluster(cluster, cluster.namespace, has_runtime_class=has_class)
    document = cluster_document(group, objects, cluster.context, cluster.namespace)
    show(form, document, lambda: _render(document))
    if document.verdict is CapacityVerdict.DOES_NOT_FIT:
        raise click.exceptions.Exit(1)


def cluster_document(group: BrokerGroup, objects: ClusterObjects, context: str, namespace: str) -> CapacityDocument:
    """Return the document of a group and these objects of a cluster. Raises CliError."""
    classes = known_runtime_classes(objects)
    workloads = _workloads(group, namespace, classes)
    judgement = _judge(group, workloads, objects)
    steps = [
        _step(change, workloads, larger, _judge(group, larger, objects))
        for change, larger in _larger(group, namespace, classes)
    ]
    document = _document(group, workloads, steps, judgement)
    plan = judgement.plan
    return msgspec.structs.replace(
        document,
        context=context,
        namespace=namespace,
        pods=[PodPlacement(**one._asdict()) for one in plan.pods] if plan is not None else [],
        nodes=_node_rows(objects, plan) if plan is not None else [],
        storage=storage_of(workloads, objects),
        left_out=objects.left_out,
    )


def _group_in(cluster: Cluster, name: str | None) -> BrokerGroup:
    found = find_group(cluster, name)
    try:
        return group_of({key: value for key, value in found.items() if key != "status"})
    except ManifestError as error:
        text = "; ".join(map(str, error.problems))
        raise CliError(f"the spec of group {found['metadata']['name']} is invalid: {text}", "correct it") from error


# -- what is needed ----------------------------------------------------------------------------------------------------


def _rendered(group: BrokerGroup, namespace: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects that the operator would apply for a group. Raises CliError."""
    metadata = msgspec.structs.replace(group.metadata, namespace=namespace, uid=group.metadata.uid or "none")
    try:
        return render(msgspec.structs.replace(group, metadata=metadata), Facts(image="none"))
    except (ImpossibleResources, InvalidQuantity) as error:
        raise _impossible(group, error) from error


def _workloads(group: BrokerGroup, namespace: str, classes: Mapping[str, Mapping[str, Any]]) -> list[Workload]:
    """Return the workloads of a group, whose pods have the overhead of these runtime classes. Raises CliError."""
    objects = _rendered(group, namespace)
    try:
        return workloads_of(with_runtime_classes(objects, classes))
    except InvalidQuantity as error:
        raise _impossible(group, error) from error


def _impossible(group: BrokerGroup, error: Exception) -> CliError:
    return CliError(f"group {group.metadata.name}: {error}", "see docs/groups.md")


def _larger(
    group: BrokerGroup, namespace: str, classes: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, list[Workload]]]:
    """Yield the changes that make a group larger, each with the workloads of the larger group."""
    spec = group.spec
    if spec.shards < SHARDS_MAX:
        larger = msgspec.structs.replace(spec, shards=spec.shards + 1)
        yield "one more shard", _workloads(msgspec.structs.replace(group, spec=larger), namespace, classes)
    if spec.slaves < SLAVES_MAX:
        larger = msgspec.structs.replace(spec, slaves=spec.slaves + 1)
        larger_group = msgspec.structs.replace(group, spec=larger)
        yield "one more slave in each shard", _workloads(larger_group, namespace, classes)


def _step(change: str, before: Sequence[Workload], after: Sequence[Workload], judgement: _Judgement) -> CapacityStep:
    now, then = totals_of(before), totals_of(after)
    more = {name: amount - now.requests.get(name, 0) for name, amount in then.requests.items() if name != PODS}
    return CapacityStep(
        change=change,
        pods=then.pods - now.pods,
        requests=quantities({name: amount for name, amount in more.items() if amount}),
        volume_size=amount_text(STORAGE, then.volume_bytes - now.volume_bytes),
        verdict=judgement.verdict,
    )


def _document(
    group: BrokerGroup, workloads: Sequence[Workload], steps: list[CapacityStep], judgement: _Judgement
) -> CapacityDocument:
    backup = group.spec.backup
    return CapacityDocument(
        at_ms=time.time_ns() // 1_000_000,
        context="",
        namespace=group.metadata.namespace,
        group=group.metadata.name,
        needs=_needs(workloads),
        totals=_totals(totals_of(workloads), backup.keep if backup.schedule else 0),
        steps=steps,
        verdict=judgement.verdict,
        reasons=list(judgement.reasons),
        pods=[],
        nodes=[],
        storage=[],
        left_out=[],
    )


def _needs(workloads: Sequence[Workload]) -> list[PodNeeds]:
    """Return the needs of each kind of pod: all brokers are equal, also those of different shards."""
    found: dict[str, PodNeeds] = {}
    for one in workloads:
        before = found.get(one.component)
        claim = next(iter(one.claims), None)
        found[one.component] = PodNeeds(
            component=one.component,
            pods=len(one.pods) + (0 if before is None else before.pods),
            requests=quantities(_without_pods(one.requests)),
            limits=quantities(one.limits),
            volume_size="" if claim is None else amount_text(STORAGE, claim.size_bytes),
            storage_class="" if claim is None else claim.storage_class,
            surge=one.surge,
        )
    return list(found.values())


def _totals(totals: Totals, backups: int) -> CapacityTotals:
    return CapacityTotals(
        pods=totals.pods,
        requests=quantities(_without_pods(totals.requests)),
        surge=quantities({name: amount for name, amount in _without_pods(totals.surge).items() if amount}),
        volumes=totals.volumes,
        volume_size=amount_text(STORAGE, totals.volume_bytes),
        scheduled_backups=backups,
    )


def _without_pods(amounts: Mapping[str, int]) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name != PODS}


# -- what a cluster has ------------------------------------------------------------------------------------------------


def _judge(group: BrokerGroup, workloads: Sequence[Workload], objects: ClusterObjects) -> _Judgement:
    """Return whether workloads fit. While pods of others are unknown, only that they do not fit is certain."""
    reasons = [*_class_reasons(workloads, objects), *storage_reasons(workloads, objects)]
    if objects.nodes is None:
        return _Judgement(CapacityVerdict.DOES_NOT_FIT if reasons else CapacityVerdict.UNKNOWN, reasons)
    pods = objects.own_pods if objects.pods is None else objects.pods
    nodes = Nodes(objects.nodes, reservations(pods), storage_capacities=objects.storage_capacities)
    plan = make_plan(group.metadata.name, workloads, nodes, pods, volumes_of(objects))
    reasons = [*reasons, *plan.reasons]
    if reasons:
        return _Judgement(CapacityVerdict.DOES_NOT_FIT, reasons, plan)
    is_known = objects.pods is not None and not _unknown_classes(workloads, objects)
    return _Judgement(CapacityVerdict.FITS if is_known else CapacityVerdict.UNKNOWN, [], plan)


def _class_reasons(workloads: Sequence[Workload], objects: ClusterObjects) -> list[str]:
    """Return which runtime classes are missing, so that the API server refuses their pods."""
    missing = [] if objects.runtime_classes is None else _unknown_classes(workloads, objects)
    return [f"runtime class {name} not found: the API server refuses its pods; create it" for name in missing]


def _unknown_classes(workloads: Sequence[Workload], objects: ClusterObjects) -> list[str]:
    """Return the runtime classes of the pods whose overhead is unknown."""
    names = {str(one.spec["runtimeClassName"]) for one in workloads if one.spec.get("runtimeClassName")}
    return sorted(names - known_runtime_classes(objects).keys())


def _node_rows(objects: ClusterObjects, plan: Plan) -> list[NodeCapacity]:
    present = Nodes(objects.nodes or [], reservations(objects.pods or []))
    return [
        NodeCapacity(
            node=one.node,
            allocatable=quantities(present.allocatable[one.node]),
            requested=None if objects.pods is None else quantities(present.reserved(one.node)),
            free=None if objects.pods is None else quantities(present.free(one.node)),
            brokers=one.running,
            more_brokers=one.more,
            limit=one.limit,
        )
        for one in plan.rooms
    ]


# -- text --------------------------------------------------------------------------------------------------------------


def _render(document: CapacityDocument) -> Iterator[RenderableType]:
    """Yield the tables and lines for people."""
    place = f"{document.namespace}/{document.group}" if document.context else document.group
    named = sorted_names({name for one in document.needs for name in one.requests})
    columns = ["pods", "count", *named, "memory limit", "volume", "storage class"]
    rows = [_need_row(one, named) for one in document.needs]
    rows.append(_total_row(document.totals, named))
    yield table(f"Needs of group {place}, for each pod", columns, rows, right=columns[1:-1])
    yield from (Text(printable(line)) for line in _need_lines(document))
    if document.nodes:
        yield _node_table(document)
    yield from (Text(printable(line)) for line in _verdict_lines(document, place))


def _need_row(one: PodNeeds, named: Sequence[str]) -> list[str]:
    amounts = [_short(name, one.requests) for name in named]
    storage_class = one.storage_class or ("(default)" if one.volume_size else "-")
    return [
        one.component,
        str(one.pods),
        *amounts,
        _short(MEMORY, one.limits),
        _short(STORAGE, {STORAGE: one.volume_size} if one.volume_size else {}),
        storage_class,
    ]


def _total_row(totals: CapacityTotals, named: Sequence[str]) -> list[str]:
    amounts = [_short(name, totals.requests) for name in named]
    return ["total", str(totals.pods), *amounts, "", _short(STORAGE, {STORAGE: totals.volume_size}), ""]


def _need_lines(document: CapacityDocument) -> Iterator[str]:
    totals = document.totals
    if totals.surge:
        yield f"a roll of the proxies needs {_sentence(totals.surge)} more for a time; one of brokers needs no more"
    if totals.scheduled_backups:
        count = plural(totals.scheduled_backups, "backup")
        yield f"{count} of the schedule are kept, each with a snapshot of one volume of each shard"
    for step in document.steps:
        verdict = f": {step.verdict}" if document.nodes else ""
        yield (
            f"{step.change} needs {plural(step.pods, 'pod')}, {_sentence(step.requests)},"
            f" volumes {_short(STORAGE, {STORAGE: step.volume_size})} more{verdict}"
        )


def _node_table(document: CapacityDocument) -> RenderableType:
    named = sorted_names({name for one in document.needs for name in one.requests} | {PODS, CPU, MEMORY})
    columns = ["node", *named, "brokers", "room for more", "limit"]
    rows = [
        [
            one.node,
            *(_share(name, one) for name in named),
            str(one.brokers),
            str(one.more_brokers),
            one.limit,
        ]
        for one in document.nodes
    ]
    title = "Nodes: free of allocatable" if document.nodes[0].free is not None else "Nodes: allocatable"
    return table(title, columns, ([printable(cell) for cell in row] for row in rows), right=columns[1:-1])


def _share(name: str, node: NodeCapacity) -> str:
    room = _short(name, node.allocatable)
    return room if node.free is None else f"{_short(name, node.free)} of {room}"


def _verdict_lines(document: CapacityDocument, place: str) -> Iterator[str]:
    for one in document.storage:
        state = "" if one.exists else ": not found"
        if one.exists:
            growth = "volumes can grow" if one.allows_expansion else "volumes cannot grow"
            state = f": {one.provisioner}, {one.binding_mode}, {growth}"
        yield f"storage class {one.storage_class}{' (default)' if one.is_default else ''}{state}"
        for part in one.capacities:
            topology = ", ".join(f"{name}={value}" for name, value in part.topology.items()) or "everywhere"
            yield f"  {topology}: {part.capacity or 'an unknown size'} left for volumes"
    yield from (f"not read: {line}" for line in document.left_out)
    if not document.context:
        yield "Name a cluster's group, bg/GROUP, to compare the needs with its nodes."
        return
    if document.verdict is CapacityVerdict.UNKNOWN:
        yield f"Group {place}: it is unknown whether all pods fit, since not all could be read. {ESTIMATE}"
        return
    if not document.reasons:
        yield f"Group {place} {document.verdict}. {ESTIMATE}"
        return
    yield f"Group {place} {document.verdict}:"
    yield from (f"  {reason}" for reason in document.reasons)
    yield ESTIMATE


def _short(name: str, amounts: Mapping[str, str]) -> str:
    """Return one of these quantities in few characters; a hyphen if it is missing."""
    return short_text(name, amounts_of({name: amounts[name]})[name]) if name in amounts else "-"


def _sentence(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {_short(name, amounts)}" for name in sorted_names(amounts))
