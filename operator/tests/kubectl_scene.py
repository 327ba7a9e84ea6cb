"""A group as its operator would have left it on a real API server, with a scripted kubelet under its pods.

orders in shop    2 shards with a slave each; status, pods, Leases, events; every sidecar reports what a test wants
jane              a user with the permissions that a test grants
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

import yaml
from api_server import PERSON, PERSON_TOKEN, TOKEN, ApiServer
from charts_scene import ROOT
from click.testing import CliRunner, Result
from scripted_kubelet import Kubelet, Outcome, node_of

from gantry_cli.kube.plugin import cli as plugin
from gantry_cli.main import cli as gantry
from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.lease_annotations import lease_annotations

Object = dict[str, Any]

DEFINITION: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokergroups.gantry.dev"
NODE: Final = "machine-1"
"""The node of all pods."""

WORK_S: Final = 300.0
"""The limit for the work beside a command after the command has ended; a busy machine is slow."""
SECRET: Final = "a-token-that-is-never-shown-0123456789"
"""A secret that no output may contain."""

EPOCH: Final = 3_000
WROTE: Final = 9_000
BEHIND: Final = 1_000
"""The end of each master's log, and how many bytes its slave lacks."""

PODS: Final = ("orders-0-master-0", "orders-0-slave-0", "orders-1-master-0", "orders-1-slave-0")


def groups_path(namespace: str = "shop") -> str:
    return f"/apis/gantry.dev/v1alpha1/namespaces/{namespace}/brokergroups"


@final
class Scene:
    """The API server with a group and a kubelet. Owned by a module of tests; each test makes the group anew."""

    def __init__(self, server: ApiServer, kubelet: Kubelet, folder: Path) -> None:
        self.server: Final = server
        self.kubelet: Final = kubelet
        self.folder: Final = folder
        self.kubeconfig: Final = folder / "kubeconfig"
        self.reported_roles: dict[str, Object | None] = {}
        """The roles that sidecars report, by pod, if they differ from the usual ones; a sidecar with None hangs."""
        write_kubeconfig(self.kubeconfig, server.url, folder / "certs/apiserver.crt")

    # -- the cluster ---------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request as the administrator, which must succeed; return the answer."""
        status, answer = self.server.ask(method, path, body, kind)
        assert status in (200, 201), answer
        return answer

    def merge(self, path: str, change: Object) -> Any:
        """Apply a merge patch, which must succeed."""
        return self.request("PATCH", path, change, "application/merge-patch+json")

    def prepare(self) -> None:
        """Create once: the definition, namespaces, a node, and the operator's pod."""
        self.request("POST", DEFINITION.rpartition("/")[0], yaml.safe_load((ROOT / "manifests/crd.yaml").read_text()))
        for name in ("shop", "bank", "gantry-system"):
            self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        while self.server.ask("GET", groups_path())[0] != 200:
            time.sleep(0.05)
        self.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        self.merge(f"/api/v1/nodes/{NODE}/status", {"status": node_of(self.kubelet, NODE)})
        operator: Object = {"app.kubernetes.io/name": "gantry-operator"}
        self.pod("gantry-system", "gantry-operator-1", operator, ["operator"], [])

    def pod(self, namespace: str, name: str, labels: Object, containers: list[str], natives: list[str]) -> None:
        """Create a running pod; ``natives`` are the names of its native sidecars."""
        spec = {
            "nodeName": NODE,
            "containers": [{"name": one, "image": "example.com/gantry"} for one in containers],
            "initContainers": [
                {"name": one, "image": "example.com/gantry", "restartPolicy": "Always"} for one in natives
            ],
        }
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.request("POST", path, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        runs = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}

        def statuses(names: list[str]) -> list[Object]:
            return [
                {"name": one, "image": "x", "imageID": "x", "containerID": "containerd://1", "ready": True,
                 "restartCount": 1 if one == "broker" else 0, "state": runs}
                for one in names
            ]  # fmt: skip

        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                  "containerStatuses": statuses(containers), "initContainerStatuses": statuses(natives)}  # fmt: skip
        self.merge(f"{path}/{name}/status", {"status": status})

    # -- the group -----------------------------------------------------------------------------------------------------

    def make_group(self, **spec: Any) -> None:
        """Create the group with all its objects, as its operator would have left them."""
        self.reported_roles = {}
        self.kubelet.ran.clear()
        self.kubelet.run = self.run_inside
        labels = {"gantry.dev/group": "orders"}
        document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"},
                    "spec": {"shards": 2, "slaves": 1} | spec}  # fmt: skip
        made = self.request("POST", groups_path(), document)
        self.set_status(0, "orders-0-master-0", EPOCH)
        for pod in PODS:
            shard, role = pod.split("-")[1:3]
            marked = {"app.kubernetes.io/component": "broker", "gantry.dev/shard": shard, "gantry.dev/role": role}
            self.pod("shop", pod, labels | marked, ["broker"], ["sidecar"])
        self.pod("shop", "orders-nameserver-0", labels | {"app.kubernetes.io/component": "nameserver"}, ["ns"], [])
        for number in (0, 1):
            self.request("POST", "/apis/coordination.k8s.io/v1/namespaces/shop/leases",
                      {"metadata": {"name": f"orders-{number}", "labels": labels,
                                    "annotations": lease_annotations(record(EPOCH, 1))}})  # fmt: skip
        secret = {"metadata": {"name": "orders-sidecar", "labels": labels}, "stringData": {"token": SECRET}}
        self.request("POST", "/api/v1/namespaces/shop/secrets", secret)
        settings = {"peers": "http://a:8080", "live.conf": f"adminPassword={SECRET}\nfileReservedTime=72\n"}
        self.request("POST", "/api/v1/namespaces/shop/configmaps",
                  {"metadata": {"name": "orders-0", "labels": labels}, "data": settings})  # fmt: skip
        about = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "name": "orders", "namespace": "shop",
                 "uid": made["metadata"]["uid"]}  # fmt: skip
        self.request("POST", "/api/v1/namespaces/shop/events",
                  {"metadata": {"name": "orders.1"}, "involvedObject": about, "reason": "MasterPromoted",
                   "message": "shard 0: Promote member 1 epoch 3000", "type": "Normal",
                   "lastTimestamp": "2026-01-01T00:00:00Z"})  # fmt: skip

    def drop_group(self) -> None:
        """Delete the group with all its objects."""
        self.server.ask("DELETE", f"{groups_path()}/orders")
        for path in ("/api/v1/namespaces/shop/pods", "/apis/coordination.k8s.io/v1/namespaces/shop/leases",
                     "/api/v1/namespaces/shop/secrets", "/api/v1/namespaces/shop/configmaps",
                     "/api/v1/namespaces/shop/events"):  # fmt: skip
            now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            self.server.ask("DELETE", path, now)

    def set_status(self, shard: int, master: str, epoch: int, *, fenced: Sequence[int] = (), **decision: Any) -> None:
        """Write the status as the operator would: this for one shard, and for the other that it is healthy."""
        words = {"action": "", "blockedBy": [], "ifMasterDies": [f"shard {shard}: as the operator wrote it"]} | decision
        well = {"atRisk": "64Ki", "bottleneck": "disk", "isMet": True, "observedAt": "2026-01-01T00:00:00Z"}
        other = 1 - shard
        shards = [
            {"number": shard, "master": master, "epoch": epoch, "inSync": 1, "lag": "none", "durability": well,
             "fence": "Fenced" if shard in fenced else "", "decision": words},
            {"number": other, "master": f"orders-{other}-master-0", "epoch": EPOCH, "inSync": 1, "lag": "none",
             "durability": well, "fence": "Fenced" if other in fenced else "",
             "decision": words | {"ifMasterDies": []}},
        ]  # fmt: skip
        available = {"type": "Available", "status": "False" if fenced else "True",
                     "reason": "Fenced" if fenced else "AllShardsAcknowledge", "message": "",
                     "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
        held = available | {"type": "Fenced", "status": "True" if fenced else "False",
                            "message": f"shards {list(fenced)}" if fenced else "",
                            "reason": "ByAnnotation" if fenced else "NotFenced"}  # fmt: skip
        status = {"phase": "Ready", "ready": "2/2", "observedGeneration": 1, "eachShard": shards,
                  "conditions": [available, held]}  # fmt: skip
        self.merge(f"{groups_path()}/orders/status", {"status": status})

    def group(self) -> Object:
        found: Object = self.request("GET", f"{groups_path()}/orders")
        return found

    def annotations(self) -> Object:
        return dict(self.group()["metadata"].get("annotations") or {})

    def annotate(self, **changes: str | None) -> None:
        annotations = {f"gantry.dev/{name.replace('_', '-')}": text for name, text in changes.items()}
        self.merge(f"{groups_path()}/orders", {"metadata": {"annotations": annotations}})

    def record_master(self, shard: int, member: int, epoch: int) -> None:
        """Record a member as master in the shard's Lease, as an election does."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/shop/leases/orders-{shard}"
        self.merge(path, {"metadata": {"annotations": lease_annotations(record(epoch, member))}})

    # -- inside of pods ------------------------------------------------------------------------------------------------

    def run_inside(self, pod: str, container: str, command: list[str]) -> Outcome | None:
        """Answer `gantry pod get` in a sidecar's container."""
        assert container == "sidecar" and command[:3] == ["gantry", "pod", "get"]
        if command[3] == "--raw":
            return Outcome(b"\x1f\x8bpacked by " + pod.encode() + bytes(range(256)))
        role = self.reported_roles.get(pod, role_of(pod))
        if role is None:
            return None
        status = {name: role[name] for name in ("role", "epoch", "wrote", "committed", "flushed", "acked", "confirmed")}
        status |= {"loop_state": {"state": "running"}, "ready": {"ready": True, "reason": "in sync"}}
        answers = {"/v1/status": {"status": 200, "body": status}, "/v1/role/now": {"status": 200, "body": role}}
        return Outcome(json.dumps(answers).encode())

    # -- commands ------------------------------------------------------------------------------------------------------

    def kubectl(self, *words: str, context: str = "admin", namespace: str = "shop") -> Result:
        """Run a command of `kubectl gantry`."""
        where = ["--kubeconfig", str(self.kubeconfig), "--context", context, "-n", namespace]
        return CliRunner().invoke(plugin, [words[0], *where, *words[1:]])

    def gantry(self, *words: str) -> Result:
        where = ["--kubeconfig", str(self.kubeconfig), "--namespace", "shop"]
        return CliRunner().invoke(gantry, [words[0], *where, *words[1:]])

    @contextmanager
    def meanwhile(self, work: Callable[[], None]) -> Iterator[None]:
        """Run ``work`` in a thread during the block, as an operator works while a command waits."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # raised again in the test
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield
        thread.join(WORK_S)
        assert not thread.is_alive() and not failures, failures

    def permit(self, rules: list[Object]) -> None:
        """Grant jane these permissions in the namespace `shop`, and no others."""
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop"
        for kind in ("rolebindings", "roles"):
            self.server.ask("DELETE", f"{path}/{kind}/jane")
        self.request("POST", f"{path}/roles", {"metadata": {"name": "jane"}, "rules": rules})
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": PERSON}
        role = {"kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}
        self.request(
            "POST", f"{path}/rolebindings", {"metadata": {"name": "jane"}, "roleRef": role, "subjects": [subject]}
        )


def record(epoch: int, master: int) -> LeaseRecord:
    """Return the Lease record of a completed election."""
    slave = 3 - master
    term = Term(epoch=epoch, master=master, identity=f"store-{master}", electable=(Voter(slave, f"store-{slave}"),),
                  acks_needed=1)  # fmt: skip
    return LeaseRecord(epoch=epoch, terms=(term,))


def role_of(pod: str) -> Object:
    """Return the report of a broker of the group about itself, by the names of the control socket."""
    is_master = "master" in pod
    wrote = WROTE if is_master else WROTE - BEHIND
    slave = {"broker_id": 2, "identity": "store-2", "received": WROTE - BEHIND, "flushed": WROTE - BEHIND}
    return {
        "role": "MASTER" if is_master else "SLAVE", "broker_id": 1 if is_master else 2,
        "broker_name": pod.partition("-master")[0].partition("-slave")[0], "epoch": EPOCH,
        "promised_epoch": EPOCH, "identity": "store-1" if is_master else "store-2", "last_epoch": EPOCH,
        "epoch_start": 0, "wrote": wrote, "committed": wrote, "flushed": 5_000, "acked": WROTE - BEHIND,
        "confirmed": WROTE - BEHIND, "ha_address": "10.0.0.1:10912", "heartbeat_age_ms": 10, "granted_ms": 1_000,
        "peak_bytes_per_s": 100, "master_id": 1, "master": "", "electable": [2], "acks_needed": 1,
        "slaves": [slave] if is_master else [], "is_complete": True, "is_crash_safe": True, "is_draining": False,
        "problem": "",
    }  # fmt: skip


def write_kubeconfig(path: Path, url: str, authority: Path | None = None) -> None:
    """Write a kubeconfig with an administrator, jane, and a stranger with an unknown token."""
    cluster = {"server": url} | ({} if authority is None else {"certificate-authority": str(authority)})
    users = {"admin": TOKEN, "jane": PERSON_TOKEN, "stranger": "an-unknown-token"}
    contexts = [{"name": name, "context": {"cluster": "c", "user": name, "namespace": "shop"}} for name in users]
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "admin",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}} for name, token in users.items()],
        "contexts": contexts,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(document))
