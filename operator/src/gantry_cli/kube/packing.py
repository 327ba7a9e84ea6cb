"""`gantry bundle bg/GROUP`: what somebody needs who was not there, in one tar.gz, without a secret or a message.

    gantry-bundle/
      group.yaml  look.json                    the group, and what `gantry status` says of it
      objects/KIND/NAME.yaml                   everything that the operator has made of it, but Secrets
      events.yaml                              of all of these
      logs/POD/CONTAINER.log, .previous.log    the end of what containers have written
      sidecars/POD.tar.gz                      what each sidecar packs of its broker
      operator/                                its Deployment, pods and logs
      nodes/NAME.yaml                          machines on which its pods are
      versions.json  left-out.txt              what could not be had, and why

Secrets are never asked for. What is asked for goes through ``scrubbed``, since mistakes are left: a password in a
variable of a template, a token in a log. Names of Secrets stay, since a search for a fault needs them. One may lack
rights to any of it: what is left out is named with the right that lacks, and the rest is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import msgspec

from gantry_access.redaction import TAKEN_OUT, names_secret, redacted
from gantry_cli.kube.cluster import Cluster, Object, Target, open_group
from gantry_cli.kube.faults import Refusal, line_of
from gantry_cli.kube.inside import Inside, is_running
from gantry_cli.kube.look import GroupObserver, document_of
from gantry_cli.kube.naming import DEPLOYMENTS, EVENTS, NODES, OPERATOR_LABELS, PACKED, PODS
from gantry_cli.local.bundle import write_bundle
from gantry_cli.output import yaml_text
from gantry_spec.cluster_objects import GROUP_LABEL, Kind
from gantry_wire.version import VERSION

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_HARMLESS: Final = frozenset(
    {"secretname", "automountserviceaccounttoken", "imagepullsecrets", "serviceaccounttoken", "tokenexpirationseconds"}
)
"""Keys of Kubernetes' own that name a secret and hold none."""


def scrubbed(value: Any) -> Any:
    """An object as the API server answers it, without secrets and without what only Kubernetes itself needs."""
    if isinstance(value, list):
        return [scrubbed(one) for one in value]
    if isinstance(value, str):
        return redacted(value)
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("name"), str) and isinstance(value.get("value"), str) and names_secret(value["name"]):
        return value | {"value": TAKEN_OUT}  # a variable of a container
    return {key: _of_key(str(key), inner) for key, inner in value.items() if key not in ("managedFields", LAST_APPLIED)}


def _of_key(key: str, value: Any) -> Any:
    is_secret = isinstance(value, str) and value and names_secret(key) and key.lower() not in _HARMLESS
    return TAKEN_OUT if is_secret else scrubbed(value)


LOG_BYTES_MAX: Final = 2 << 20
OPERATOR_NAMESPACE: Final = "gantry-system"

Entry = tuple[str, bytes]


def pack_in_cluster(target: Target, name: str | None, file: Path | None, *, may_exec: bool) -> None:
    """Write the bundle of a group in a cluster, and where it is. Raises CliError."""
    cluster, document = open_group(target, name)
    entries = Packing(cluster, document, may_exec=may_exec).entries()
    try:
        write_bundle(file, f"gantry-bundle-{document['metadata']['name']}", entries)
    except Refusal as refusal:
        raise line_of(refusal) from refusal


@final
class Packing:
    """Of one group, once."""

    def __init__(self, cluster: Cluster, document: Object, *, may_exec: bool) -> None:
        self._cluster: Final = cluster
        self._document: Final = document
        self._name: Final = str(document["metadata"]["name"])
        self._inside: Final = Inside(cluster, is_wanted=may_exec)
        self._left_out: Final[list[str]] = []

    def entries(self) -> Iterator[Entry]:
        """Name and content of each file."""
        yield "group.yaml", _yaml(self._document)
        seen = GroupObserver(self._cluster, self._inside).look(self._document)
        self._left_out.extend(seen.left_out)
        yield "look.json", msgspec.json.format(msgspec.json.encode(document_of(self._cluster, seen)))
        objects = {kind: self._objects(kind) for kind in PACKED}
        for kind, found in objects.items():
            yield from ((f"objects/{kind.plural}/{_file(one)}.yaml", _yaml(one)) for one in found)
        yield from self._events([one for found in objects.values() for one in found])
        pods = objects[PODS]
        for pod in pods:
            yield from self._logs(pod, "logs")
        for pod in pods:
            yield from self._packed_inside(pod)
        yield from self._nodes(pods)
        yield from self._operator()
        yield "versions.json", self._versions()
        yield "left-out.txt", "".join(f"{line}\n" for line in dict.fromkeys(self._left_out)).encode()

    def _try(self, what: str, ask: Callable[[], Any], nothing: Any) -> Any:
        """Whatever can be had; what cannot is put down."""
        try:
            return ask()
        except Refusal as refusal:
            self._left_out.append(f"{what}: {refusal.short}")
            return nothing

    def _objects(self, kind: Kind) -> list[Object]:
        labels = f"{GROUP_LABEL}={self._name}"
        try:
            return self._cluster.list(kind, labels=labels)
        except Refusal as refusal:
            if not refusal.is_unserved:  # a cluster without Prometheus knows no PodMonitor, and nothing lacks
                self._left_out.append(f"{kind.plural}: {refusal.short}")
            return []

    def _events(self, objects: list[Object]) -> Iterator[Entry]:
        ours = {self._document["metadata"].get("uid"), *(one["metadata"].get("uid") for one in objects)}
        prefix = f"{self._name}-"
        events = [
            event
            for event in self._try("events", lambda: self._cluster.list(EVENTS), [])
            if (about := event.get("involvedObject") or {}).get("uid") in ours
            or str(about.get("name", "")).startswith(prefix)  # of pods that are gone
        ]
        yield "events.yaml", _yaml(events)

    def _logs(self, pod: Object, folder: str) -> Iterator[Entry]:
        metadata, status = pod["metadata"], pod.get("status") or {}
        every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        for one in every:
            container, has_begun = str(one.get("name")), bool(one.get("containerID") or one.get("restartCount"))
            turns = ([False] if has_begun else []) + ([True] if one.get("restartCount") else [])
            for is_previous in turns:
                name = f"{folder}/{metadata['name']}/{container}{'.previous' if is_previous else ''}.log"
                data = self._log(name, metadata, container, is_previous=is_previous)
                if data is not None:
                    yield name, redacted(data.decode("utf-8", "replace")).encode()

    def _log(self, name: str, metadata: Object, container: str, *, is_previous: bool) -> bytes | None:
        def ask() -> bytes:
            namespace, pod = str(metadata["namespace"]), str(metadata["name"])
            return self._cluster.logs(namespace, pod, container, is_previous=is_previous, bytes_max=LOG_BYTES_MAX)

        found: bytes | None = self._try(name, ask, None)
        return found

    def _packed_inside(self, pod: Object) -> Iterator[Entry]:
        name = str(pod["metadata"]["name"])
        if self._inside.refused or not is_running(pod):
            return
        data = self._try(f"the sidecar's own bundle of {name}", lambda: self._inside.bundle(name), None)
        if data is not None:
            yield f"sidecars/{name}.tar.gz", data

    def _nodes(self, pods: list[Object]) -> Iterator[Entry]:
        for name in sorted({str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods} - {""}):
            node = self._try(f"node {name}", partial(self._cluster.get, NODES, name, ""), None)
            if node is not None:
                yield f"nodes/{name}.yaml", _yaml(node)

    def _operator(self) -> Iterator[Entry]:
        """Wherever it runs, if one may look everywhere; else where it is installed by default."""
        for kind in (DEPLOYMENTS, PODS):
            found = self._of_operator(kind)
            for one in found:
                yield f"operator/{kind.plural}/{_file(one)}.yaml", _yaml(one)
                if kind is PODS:
                    yield from self._logs(one, "operator/logs")

    def _of_operator(self, kind: Kind) -> list[Object]:
        try:
            return self._cluster.list(kind, "", labels=OPERATOR_LABELS)
        except Refusal:
            what = f"the operator's {kind.plural}"
            found: list[Object] = self._try(
                what, lambda: self._cluster.list(kind, OPERATOR_NAMESPACE, labels=OPERATOR_LABELS), []
            )
            return found

    def _versions(self) -> bytes:
        facts = {
            "gantry": VERSION,
            "api_server": self._try("the API server's version", self._cluster.version, None),
            "context": self._cluster.context,
            "namespace": self._cluster.namespace,
            "packed_at_ms": time.time_ns() // 1_000_000,
        }
        return msgspec.json.format(msgspec.json.encode(facts))


def _yaml(document: Any) -> bytes:
    return yaml_text(scrubbed(document)).encode()


def _file(document: Object) -> str:
    """The name of its file: those of objects may hold no slash, and only a few other characters."""
    return str(document["metadata"]["name"]).replace("/", "_")
