"""`gantry bundle bg/GROUP`: everything needed to diagnose a group, in one tar.gz, without a secret or a message.

    gantry-bundle/
      group.yaml  status.json                  the group, and the document of `gantry status`
      objects/KIND/NAME.yaml                   all objects that the operator has created for it, except Secrets
      events.yaml                              the events of all of these, and of deleted pods and StatefulSets
      logs/POD/CONTAINER.log, .previous.log    the ends of container logs
      sidecars/POD.tar.gz                      the sidecars' own bundles
      operator/                                the operator's Deployment, pods and logs
      nodes/NAME.yaml                          the nodes of its pods
      versions.json  left-out.txt              versions; what could not be read, and why

Secrets are never read. Everything else is redacted, since secrets may be misplaced: objects by ``redact_object`` (a
password in an environment variable of a template), logs by ``redact`` (a token), a sidecar's bundle by the sidecar.
Names of Secrets stay, since a diagnosis needs them. Parts that the user may not read are named in left-out.txt with the
missing right, and the bundle has the rest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Set
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import msgspec

from gantry_access.redaction import REDACTED, is_secret_name, redact
from gantry_cli.kube.api_errors import ApiError, cli_error_of
from gantry_cli.kube.cluster import Cluster, Object, Target, open_group
from gantry_cli.kube.group_observer import GroupObserver, document_of
from gantry_cli.kube.naming import BUNDLED_KINDS, DEPLOYMENTS, EVENTS, NODES, OPERATOR_LABELS, PODS
from gantry_cli.kube.sidecars import SidecarClient, is_running
from gantry_cli.local.bundle import write_bundle
from gantry_cli.output import yaml_text
from gantry_spec.cluster_objects import GROUP_LABEL, Kind
from gantry_wire.version import VERSION

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation with which `kubectl apply` keeps a copy of the whole object."""

_HARMLESS: Final = frozenset(
    {"secretname", "automountserviceaccounttoken", "imagepullsecrets", "serviceaccounttoken", "tokenexpirationseconds"}
)
"""Keys of Kubernetes that name a secret but hold none."""


def redact_object(value: Any) -> Any:
    """Return an object of the API server without secrets and without fields that only Kubernetes itself needs."""
    if isinstance(value, list):
        return [redact_object(one) for one in value]
    if isinstance(value, str):
        return redact(value)
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("name"), str) and isinstance(value.get("value"), str) and is_secret_name(value["name"]):
        return value | {"value": REDACTED}  # an environment variable of a container
    return {
        key: _redact_field(str(key), inner)
        for key, inner in value.items()
        if key not in ("managedFields", LAST_APPLIED)
    }


def _redact_field(key: str, value: Any) -> Any:
    is_secret = isinstance(value, str) and value and is_secret_name(key) and key.lower() not in _HARMLESS
    return REDACTED if is_secret else redact_object(value)


_GENERATED: Final = "[bcdfghjklmnpqrstvwxz2456789]"
"""A character of the parts that Kubernetes adds to the names of ReplicaSets and pods. It has no vowels, as words do."""

WORKLOADS: Final = ("Pod", "StatefulSet", "Deployment", "ReplicaSet")
"""The kinds of a group's objects that run processes. Their events are collected after their deletion, too."""


def is_event_of(event: Object, group: str, uids: Set[str]) -> bool:
    """Return whether an event is about an object of a group: about a present one, or about a deleted workload.

    ``uids`` are those of the present objects. A deleted pod or StatefulSet is found by its name. A common beginning is
    not enough: the group `orders-eu` is another one than `orders`.
    """
    about = event.get("involvedObject") or {}
    if about.get("uid") in uids:
        return True
    stateful = "(?:nameserver|[0-9]+-(?:master|slave))(?:-[0-9]+)?"
    proxies = f"proxy(?:-{_GENERATED}{{6,10}}(?:-{_GENERATED}{{5}})?)?"
    pattern = f"{re.escape(group)}-(?:{stateful}|{proxies})"
    return about.get("kind") in WORKLOADS and re.fullmatch(pattern, str(about.get("name"))) is not None


LOG_BYTES_MAX: Final = 2 << 20
"""How many bytes of the end of each log the bundle has."""

OPERATOR_NAMESPACE: Final = "gantry-system"
"""The operator's namespace where the user may not list all namespaces."""

Entry = tuple[str, bytes]
"""The name and the content of a file in the bundle."""


def write_cluster_bundle(target: Target, name: str | None, file: Path | None, *, may_exec: bool) -> None:
    """Write the bundle of a group in a cluster, and print its path. Raises CliError."""
    cluster, document = open_group(target, name)
    entries = ClusterBundle(cluster, document, may_exec=may_exec).entries()
    try:
        write_bundle(file, f"gantry-bundle-{document['metadata']['name']}", entries)
    except ApiError as error:
        raise cli_error_of(error) from error


@final
class ClusterBundle:
    """Collects the bundle of one group, once."""

    def __init__(self, cluster: Cluster, document: Object, *, may_exec: bool) -> None:
        self._cluster: Final = cluster
        self._document: Final = document
        self._name: Final = str(document["metadata"]["name"])
        self._sidecars: Final = SidecarClient(cluster, is_wanted=may_exec)
        self._left_out: Final[list[str]] = []

    def entries(self) -> Iterator[Entry]:
        """Yield the name and the content of each file."""
        yield "group.yaml", _yaml(self._document)
        observation = GroupObserver(self._cluster, self._sidecars).observe(self._document)
        self._left_out.extend(observation.left_out)
        status = redact_object(msgspec.to_builtins(document_of(self._cluster, observation)))
        yield "status.json", msgspec.json.format(msgspec.json.encode(status))
        objects = {kind: self._objects(kind) for kind in BUNDLED_KINDS}
        for kind, found in objects.items():
            yield from ((f"objects/{kind.plural}/{_file(one)}.yaml", _yaml(one)) for one in found)
        yield from self._events([one for found in objects.values() for one in found])
        pods = objects[PODS]
        for pod in pods:
            yield from self._logs(pod, "logs")
        for pod in pods:
            yield from self._sidecar_bundle(pod)
        yield from self._nodes(pods)
        yield from self._operator()
        yield "versions.json", self._versions()
        yield "left-out.txt", redact("".join(f"{line}\n" for line in dict.fromkeys(self._left_out))).encode()

    def _try(self, what: str, request: Callable[[], Any], default: Any) -> Any:
        """Return the result of ``request``. After an ``ApiError`` record what is left out, and return ``default``."""
        try:
            return request()
        except ApiError as error:
            self._left_out.append(f"{what}: {error.short}")
            return default

    def _objects(self, kind: Kind) -> list[Object]:
        labels = f"{GROUP_LABEL}={self._name}"
        try:
            return self._cluster.list(kind, labels=labels)
        except ApiError as error:
            if not error.is_unserved:  # a cluster without Prometheus has no PodMonitor, and the bundle is complete
                self._left_out.append(f"{kind.plural}: {error.short}")
            return []

    def _events(self, objects: list[Object]) -> Iterator[Entry]:
        uids = {str(one["metadata"].get("uid")) for one in (self._document, *objects)}
        events = self._try("events", lambda: self._cluster.list(EVENTS), [])
        events = [event for event in events if is_event_of(event, self._name, uids)]
        yield "events.yaml", _yaml(events)

    def _logs(self, pod: Object, folder: str) -> Iterator[Entry]:
        metadata, status = pod["metadata"], pod.get("status") or {}
        every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        for one in every:
            container, has_begun = str(one.get("name")), bool(one.get("containerID") or one.get("restartCount"))
            previous_flags = ([False] if has_begun else []) + ([True] if one.get("restartCount") else [])
            for is_previous in previous_flags:
                name = f"{folder}/{metadata['name']}/{container}{'.previous' if is_previous else ''}.log"
                data = self._log(name, metadata, container, is_previous=is_previous)
                if data is not None:
                    yield name, redact(data.decode("utf-8", "replace")).encode()

    def _log(self, name: str, metadata: Object, container: str, *, is_previous: bool) -> bytes | None:
        def ask() -> bytes:
            namespace, pod = str(metadata["namespace"]), str(metadata["name"])
            return self._cluster.logs(namespace, pod, container, is_previous=is_previous, bytes_max=LOG_BYTES_MAX)

        found: bytes | None = self._try(name, ask, None)
        return found

    def _sidecar_bundle(self, pod: Object) -> Iterator[Entry]:
        name = str(pod["metadata"]["name"])
        if self._sidecars.refusal_reason or not is_running(pod):
            return
        data = self._try(f"the bundle of the sidecar of {name}", lambda: self._sidecars.bundle(name), None)
        if data is not None:
            yield f"sidecars/{name}.tar.gz", data

    def _nodes(self, pods: list[Object]) -> Iterator[Entry]:
        for name in sorted({str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods} - {""}):
            node = self._try(f"node {name}", partial(self._cluster.get, NODES, name, ""), None)
            if node is not None:
                yield f"nodes/{name}.yaml", _yaml(node)

    def _operator(self) -> Iterator[Entry]:
        """Yield the operator's files from all namespaces, or from its default one if the user may not list all."""
        for kind in (DEPLOYMENTS, PODS):
            found = self._of_operator(kind)
            for one in found:
                yield f"operator/{kind.plural}/{_file(one)}.yaml", _yaml(one)
                if kind is PODS:
                    yield from self._logs(one, "operator/logs")

    def _of_operator(self, kind: Kind) -> list[Object]:
        try:
            return self._cluster.list(kind, "", labels=OPERATOR_LABELS)
        except ApiError:
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
    return yaml_text(redact_object(document)).encode()


def _file(document: Object) -> str:
    """Return the file name of an object. Names of objects have few special characters besides a slash."""
    return str(document["metadata"]["name"]).replace("/", "_")
