"""The part of Kubernetes that no API server does: pods for StatefulSets, claims that are bound, kubelets that report.

Everything that the operator makes is really there, at a real API server, and so is everything that it sees; only what
would run on nodes does not. What is told by watches here: StatefulSets get their pods, Leases are what model brokers
believe, and a group is Ready in the moment in which its status says so.
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
SETS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
GROUPS: Final = f"/apis/gantry.dev/v1alpha1/namespaces/{NAMESPACE}/brokergroups"
MERGE: Final = "application/merge-patch+json"
NODES_COUNT: Final = 5
STEP_S: Final = 0.25
RENEWAL_S: Final = 5.0
"""A third of a shard's Lease, as sidecars do it."""

RECORDS_LOAD: Final = 0.2
"""Of what a model broker can take in a step: one message."""

STEPS_PER_MESSAGE: Final = 4
AT_ONCE: Final = 16
LINE_BYTES_MAX: Final = 4 << 20


@final
class StandInCluster:
    """Owned by the event loop. ``run`` goes on until it is cancelled."""

    def __init__(self, url: str, sidecars: StandInSidecars) -> None:
        self.ready_s: Final[dict[str, float]] = {}
        """When a group was Ready first, on the monotonic clock."""

        self.is_ready: Final[dict[str, bool]] = {}
        """By the newest status."""

        self.pods = 0
        self.renewals = 0
        self._url: Final = url
        self._sidecars: Final = sidecars
        self._known: Final[set[str]] = set()
        self._places: Final = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> StandInCluster:
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {TOKEN}"},
            connector=aiohttp.TCPConnector(ssl=False, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=LINE_BYTES_MAX,
        )
        for number in range(NODES_COUNT):
            await self._node(f"node-{number}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections, those of requests that are cancelled included; may be called again.

        Call it right after `run` was cancelled: a request that has ended by then says goodbye over TLS, and nothing
        waits for the answer of its server.
        """
        assert self._session is not None, "entered before it is closed"
        await self._session.close()

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Raises BenchmarkFailed for what is refused."""
        assert self._session is not None, "entered before it is used"
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self._url + path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.text()
            if answer.status not in (200, 201):
                raise BenchmarkFailed(f"{method} {path}: {answer.status} {text[:500]}")
            return json.loads(text)

    async def create_group(self, name: str, spec: dict[str, Any]) -> None:
        """As a person does it."""
        head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": name}}
        await self.ask("POST", GROUPS, head | {"spec": spec})

    # -- what goes on by itself ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled, or until something here goes wrong."""
        async with asyncio.TaskGroup() as tasks:

            def homed(document: dict[str, Any]) -> None:
                for name, ordinal in self._new_pods(document):
                    tasks.create_task(self._start(document, name, ordinal))

            tasks.create_task(self._watch(SETS, homed))
            tasks.create_task(self._watch(LEASES, self._leased))
            tasks.create_task(self._watch(GROUPS, self._grouped))
            tasks.create_task(self._advance())
            tasks.create_task(self._renew())

    async def _watch(self, path: str, told: Callable[[dict[str, Any]], None]) -> None:
        assert self._session is not None, "entered before it is used"
        while True:
            async with self._session.get(f"{self._url}{path}?watch=1&resourceVersion=0&timeoutSeconds=3600") as answer:
                while line := await answer.content.readline():
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED"):
                        told(event["object"])

    async def _advance(self) -> None:
        step = 0
        while True:
            step += 1
            load = RECORDS_LOAD if step % STEPS_PER_MESSAGE == 0 else 0.0
            self._sidecars.advance(now_ms(), load)
            await asyncio.sleep(STEP_S)

    async def _renew(self) -> None:
        """Every Lease whose master is there, one after the other, spread over the time between two renewals."""
        while True:
            keys, began_s = list(self._sidecars.shards), time.monotonic()
            for number, key in enumerate(keys):
                await asyncio.sleep(began_s + number / len(keys) * RENEWAL_S - time.monotonic())
                holder = self._sidecars.holder(key)
                if holder:
                    spec = {"holderIdentity": holder, "renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}
                    await self.ask("PATCH", f"{LEASES}/{names.shard_name(*key)}", {"spec": spec}, MERGE)
                    self._sidecars.renewed(key)
                    self.renewals += 1
            wait_s = began_s + RENEWAL_S - time.monotonic() if keys else STEP_S
            await asyncio.sleep(wait_s)

    # -- what watches tell ---------------------------------------------------------------------------------------------

    def _leased(self, document: dict[str, Any]) -> None:
        metadata = document["metadata"]
        group = metadata["labels"][names.GROUP_LABEL]
        shard = int(metadata["name"].rpartition("-")[2])
        self._sidecars.leases[group, shard] = record_of(metadata.get("annotations") or {})

    def _grouped(self, document: dict[str, Any]) -> None:
        metadata, status = document["metadata"], document.get("status") or {}
        found = {one["type"]: one["status"] for one in status.get("conditions") or []}
        is_current = status.get("observedGeneration") == metadata["generation"]
        is_ready = is_current and found.get("Ready") == "True"
        self.is_ready[metadata["name"]] = is_ready
        if is_ready:
            self.ready_s.setdefault(metadata["name"], time.monotonic())

    def _new_pods(self, document: dict[str, Any]) -> list[tuple[str, int]]:
        home = document["metadata"]["name"]
        wanted = [(f"{home}-{ordinal}", ordinal) for ordinal in range(document["spec"]["replicas"])]
        found = [(name, ordinal) for name, ordinal in wanted if name not in self._known]
        self._known.update(name for name, _ in found)
        return found

    # -- kubelet -------------------------------------------------------------------------------------------------------

    async def _start(self, home: dict[str, Any], name: str, ordinal: int) -> None:
        """One pod, from its claims to what kubelet says of its containers."""
        async with self._places:
            claims = [await self._claim(template, name) for template in home["spec"].get("volumeClaimTemplates") or []]
            pod = await self.ask("POST", f"{CORE}/pods", pod_of(home, name, ordinal))
            place = names.member_of(home["metadata"]["labels"][names.GROUP_LABEL], name)
            address = "127.0.0.1"
            if place is not None:
                group = home["metadata"]["labels"][names.GROUP_LABEL]
                address = await self._sidecars.begin(group, place, claims[0], now_ms())
            await self.ask("PATCH", f"{CORE}/pods/{name}/status", {"status": running(pod, address)}, MERGE)
            self.pods += 1

    async def _claim(self, template: dict[str, Any], pod: str) -> str:
        """Its uid, once it is bound."""
        labels = template["metadata"].get("labels") or {}
        name = f"{template['metadata']['name']}-{pod}"
        head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "labels": labels}}
        made = await self.ask("POST", f"{CORE}/persistentvolumeclaims", head | {"spec": template["spec"]})
        status = {"status": {"phase": "Bound"}}
        await self.ask("PATCH", f"{CORE}/persistentvolumeclaims/{name}/status", status, MERGE)
        return str(made["metadata"]["uid"])

    async def _node(self, name: str) -> None:
        await self.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        room = {"cpu": "64", "memory": "256Gi", "hugepages-2Mi": "64Gi", "pods": "200"}
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"conditions": [condition], "allocatable": room, "capacity": room}
        await self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)


def now_ms() -> int:
    """Of model brokers."""
    return int(time.monotonic() * 1000)


def pod_of(home: dict[str, Any], name: str, ordinal: int) -> dict[str, Any]:
    """As the controller of StatefulSets makes it, on a node already."""
    template = home["spec"]["template"]
    labels = template["metadata"]["labels"] | {"statefulset.kubernetes.io/pod-name": name}
    head = {"name": name, "labels": labels, "annotations": template["metadata"].get("annotations") or {}}
    volumes = [
        {"name": one["metadata"]["name"], "persistentVolumeClaim": {"claimName": f"{one['metadata']['name']}-{name}"}}
        for one in home["spec"].get("volumeClaimTemplates") or []
    ]
    node = f"node-{(ordinal + home['metadata']['name'].endswith('-slave')) % NODES_COUNT}"
    spec = template["spec"] | {"nodeName": node, "volumes": [*(template["spec"].get("volumes") or []), *volumes]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec}


def running(pod: dict[str, Any], address: str) -> dict[str, Any]:
    """What kubelet says of a pod that is well."""
    state = {"running": {"startedAt": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}}

    def told(containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
        "containerStatuses": told(pod["spec"]["containers"]),
        "initContainerStatuses": told(pod["spec"].get("initContainers") or []),
    }
