"""The parts of Kubernetes beside the API server: pods for StatefulSets, bound claims, and kubelets' status reports.

All objects of the operator are at a real API server; only the processes that would run on nodes are missing. This
module reacts to watches: StatefulSets get their pods, Leases go to the model brokers, and the time at which a group's
status becomes Ready is recorded.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, final

import aiohttp
from api_server import TOKEN

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.operator_sidecars import StandInSidecars
from gantry_operator.objects import names
from gantry_spec.lease_annotations import record_of

NAMESPACE: Final = "shop"
CORE: Final = f"/api/v1/namespaces/{NAMESPACE}"
STATEFUL_SETS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
GROUPS: Final = f"/apis/gantry.dev/v1alpha1/namespaces/{NAMESPACE}/brokergroups"
MERGE: Final = "application/merge-patch+json"
NODES_COUNT: Final = 5
STEP_S: Final = 0.25
RENEWAL_S: Final = 5.0
"""The renewal interval: a third of a shard's Lease duration, as in sidecars."""

RECORDS_LOAD: Final = 0.2
"""The load of a step in which a model broker stores one message, as a share of its capacity in a step."""

STEPS_PER_MESSAGE: Final = 4
STARTS_AT_ONCE: Final = 16
"""The maximum number of pods that are being started."""
LINE_BYTES_MAX: Final = 4 << 20


@final
class StandInCluster:
    """Stands in for controllers and kubelets. Owned by the event loop; ``run`` runs until it is cancelled."""

    def __init__(self, url: str, sidecars: StandInSidecars) -> None:
        self.ready_s: Final[dict[str, float]] = {}
        """The time at which a group was Ready first, on the monotonic clock."""

        self.is_ready: Final[dict[str, bool]] = {}
        """Whether a group is Ready in its newest status."""

        self.pods = 0
        self.renewals = 0
        self._url: Final = url
        self._sidecars: Final = sidecars
        self._known: Final[set[str]] = set()
        self._starts: Final = asyncio.Semaphore(STARTS_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> StandInCluster:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {TOKEN}"},
            connector=aiohttp.TCPConnector(ssl=False, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=LINE_BYTES_MAX,
        )
        for number in range(NODES_COUNT):
            await self._create_node(f"node-{number}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections, including those of cancelled requests; may be called again.

        Call it right after `run` was cancelled: closing a TLS connection that is idle by then does not wait for the
        server.
        """
        assert self._session is not None, "expected to be entered before it is closed"
        await self._session.close()

    async def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request. Raises BenchmarkFailed if it is refused."""
        assert self._session is not None, "expected to be entered before it is used"
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self._url + path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.text()
            if answer.status not in (200, 201):
                raise BenchmarkFailed(f"{method} {path}: {answer.status} {text[:500]}")
            return json.loads(text)

    async def create_group(self, name: str, spec: dict[str, Any]) -> None:
        """Create a group with its spec."""
        head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": name}}
        await self.request("POST", GROUPS, head | {"spec": spec})

    # -- periodic tasks ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled, or until an error occurs."""
        async with asyncio.TaskGroup() as tasks:

            def on_stateful_set(document: dict[str, Any]) -> None:
                for name, ordinal in self._new_pods(document):
                    tasks.create_task(self._start(document, name, ordinal))

            tasks.create_task(self._watch(STATEFUL_SETS, on_stateful_set))
            tasks.create_task(self._watch(LEASES, self._on_lease))
            tasks.create_task(self._watch(GROUPS, self._on_group))
            tasks.create_task(self._advance())
            tasks.create_task(self._renew())

    async def _watch(self, path: str, on_object: Callable[[dict[str, Any]], None]) -> None:
        assert self._session is not None, "expected to be entered before it is used"
        while True:
            async with self._session.get(f"{self._url}{path}?watch=1&resourceVersion=0&timeoutSeconds=3600") as answer:
                while line := await answer.content.readline():
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED"):
                        on_object(event["object"])

    async def _advance(self) -> None:
        step = 0
        while True:
            step += 1
            load = RECORDS_LOAD if step % STEPS_PER_MESSAGE == 0 else 0.0
            self._sidecars.advance(now_ms(), load)
            await asyncio.sleep(STEP_S)

    async def _renew(self) -> None:
        """Renew every Lease whose master exists, spread over the renewal interval."""
        while True:
            keys, began_s = list(self._sidecars.shards), time.monotonic()
            for number, key in enumerate(keys):
                await asyncio.sleep(began_s + number / len(keys) * RENEWAL_S - time.monotonic())
                holder = self._sidecars.holder(key)
                if holder:
                    spec = {"holderIdentity": holder, "renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}
                    await self.request("PATCH", f"{LEASES}/{names.shard_name(*key)}", {"spec": spec}, MERGE)
                    self._sidecars.on_renewal(key)
                    self.renewals += 1
            wait_s = began_s + RENEWAL_S - time.monotonic() if keys else STEP_S
            await asyncio.sleep(wait_s)

    # -- objects from watches ------------------------------------------------------------------------------------------

    def _on_lease(self, document: dict[str, Any]) -> None:
        metadata = document["metadata"]
        group = metadata["labels"][names.GROUP_LABEL]
        shard = int(metadata["name"].rpartition("-")[2])
        self._sidecars.leases[group, shard] = record_of(metadata.get("annotations") or {})

    def _on_group(self, document: dict[str, Any]) -> None:
        metadata, status = document["metadata"], document.get("status") or {}
        found = {one["type"]: one["status"] for one in status.get("conditions") or []}
        is_current = status.get("observedGeneration") == metadata["generation"]
        is_ready = is_current and found.get("Ready") == "True"
        self.is_ready[metadata["name"]] = is_ready
        if is_ready:
            self.ready_s.setdefault(metadata["name"], time.monotonic())

    def _new_pods(self, document: dict[str, Any]) -> list[tuple[str, int]]:
        set_name = document["metadata"]["name"]
        wanted = [(f"{set_name}-{ordinal}", ordinal) for ordinal in range(document["spec"]["replicas"])]
        found = [(name, ordinal) for name, ordinal in wanted if name not in self._known]
        self._known.update(name for name, _ in found)
        return found

    # -- kubelet -------------------------------------------------------------------------------------------------------

    async def _start(self, stateful_set: dict[str, Any], name: str, ordinal: int) -> None:
        """Start one pod: bind its claims and report its containers as running."""
        async with self._starts:
            claims = [
                await self._bind_claim(template, name)
                for template in stateful_set["spec"].get("volumeClaimTemplates") or []
            ]
            pod = await self.request("POST", f"{CORE}/pods", pod_of(stateful_set, name, ordinal))
            place = names.member_of(stateful_set["metadata"]["labels"][names.GROUP_LABEL], name)
            address = "127.0.0.1"
            if place is not None:
                group = stateful_set["metadata"]["labels"][names.GROUP_LABEL]
                address = await self._sidecars.begin(group, place, claims[0], now_ms())
            await self.request("PATCH", f"{CORE}/pods/{name}/status", {"status": running_status(pod, address)}, MERGE)
            self.pods += 1

    async def _bind_claim(self, template: dict[str, Any], pod: str) -> str:
        """Bind a claim and return its uid."""
        labels = template["metadata"].get("labels") or {}
        name = f"{template['metadata']['name']}-{pod}"
        head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "labels": labels}}
        made = await self.request("POST", f"{CORE}/persistentvolumeclaims", head | {"spec": template["spec"]})
        status = {"status": {"phase": "Bound"}}
        await self.request("PATCH", f"{CORE}/persistentvolumeclaims/{name}/status", status, MERGE)
        return str(made["metadata"]["uid"])

    async def _create_node(self, name: str) -> None:
        await self.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        room = {"cpu": "64", "memory": "256Gi", "hugepages-2Mi": "64Gi", "pods": "200"}
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"conditions": [condition], "allocatable": room, "capacity": room}
        await self.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)


def now_ms() -> int:
    """Return the time of the model brokers."""
    return int(time.monotonic() * 1000)


def pod_of(stateful_set: dict[str, Any], name: str, ordinal: int) -> dict[str, Any]:
    """Return a pod as the StatefulSet controller makes it, scheduled to a node."""
    template = stateful_set["spec"]["template"]
    labels = template["metadata"]["labels"] | {"statefulset.kubernetes.io/pod-name": name}
    head = {"name": name, "labels": labels, "annotations": template["metadata"].get("annotations") or {}}
    volumes = [
        {"name": one["metadata"]["name"], "persistentVolumeClaim": {"claimName": f"{one['metadata']['name']}-{name}"}}
        for one in stateful_set["spec"].get("volumeClaimTemplates") or []
    ]
    node = f"node-{(ordinal + stateful_set['metadata']['name'].endswith('-slave')) % NODES_COUNT}"
    spec = template["spec"] | {"nodeName": node, "volumes": [*(template["spec"].get("volumes") or []), *volumes]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}


def running_status(pod: dict[str, Any], address: str) -> dict[str, Any]:
    """Return the status that kubelet reports for a healthy pod."""
    state = {"running": {"startedAt": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}}

    def statuses_of(containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "name": one["name"], "image": one["image"], "imageID": "", "ready": True, "started": True,
                "restartCount": 0, "containerID": f"containerd://{one['name']}.{pod['metadata']['uid']}",
                "state": state,
            }
            for one in containers
        ]  # fmt: skip

    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": statuses_of(pod["spec"]["containers"]),
        "initContainerStatuses": statuses_of(pod["spec"].get("initContainers") or []),
    }
