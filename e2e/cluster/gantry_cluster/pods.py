"""Pods for tests: a line of Python in Gantry's image, under the rules of the `restricted` security standard.

On nodes made here no image is pulled (`imagePullPolicy: Never`): the image was loaded into every node before. On other
clusters `localize_pod_spec` sets their image, which may be pulled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster, condition_status
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.image_names import IMAGE

USER = 10001
"""The user of Gantry's image."""

POD_SECONDS_MAX = 120.0
"""The limit for a pod to be ready."""

NOT_FOUND = 404

IDLE = "import signal; signal.pause()"
"""A program that does nothing until it is killed."""


def container(name: str, program: str, **fields: object) -> Object:
    """Return a container that runs a Python program."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", program],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **fields,
    }


def pod_spec(*containers: Object, **fields: object) -> Object:
    """Return a pod's specification that a restricted namespace admits."""
    return {
        "containers": list(containers),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **fields,
    }


@dataclass(frozen=True)
class Namespace:
    """A namespace of a cluster, and what tests do in one."""

    cluster: Cluster
    name: str
    labels: dict[str, str] = field(default_factory=lambda: {"pod-security.kubernetes.io/enforce": "restricted"})

    def create(self) -> Namespace:
        """Create the namespace in the cluster."""
        metadata: Object = {"name": self.name, "labels": self.labels}
        self.cluster.api.create("/api/v1/namespaces", {"metadata": metadata})
        return self

    def path(self, kind: str, group: str = "api/v1") -> str:
        """Return the API path of a collection in the namespace."""
        return f"/{group}/namespaces/{self.name}/{kind}"

    def create_pod(self, name: str, spec: Object, labels: dict[str, str] | None = None) -> None:
        """Create a pod without waiting for it."""
        metadata: Object = {"name": name, "labels": labels or {"app": name}}
        body: Object = {"metadata": metadata, "spec": self.cluster.localize_pod_spec(spec)}
        self.cluster.api.create(self.path("pods"), body)

    def read_pod(self, name: str) -> Object | None:
        """Return a pod, or None if it does not exist."""
        try:
            return self.cluster.api.get(f"{self.path('pods')}/{name}")
        except ApiRefused as refusal:
            if refusal.status != NOT_FOUND:
                raise
            return None

    def is_ready(self, name: str) -> bool:
        """Return whether a pod exists and is ready."""
        pod = self.read_pod(name)
        return pod is not None and condition_status(pod, "Ready") == "True"

    def wait_ready(self, *names: str, seconds_max: float = POD_SECONDS_MAX) -> None:
        """Wait until all these pods are ready."""
        for name in names:
            wait_until(f"ready pod {self.name}/{name}", lambda name=name: self.is_ready(name), seconds_max)  # type: ignore[misc]

    def run_python(self, name: str, program: str, container: str = "main") -> str:
        """Run a Python program in an existing pod; return its output."""
        words = ("exec", name, f"--namespace={self.name}", f"--container={container}", "--", "python", "-c", program)
        return self.cluster.kubectl(*words).strip()


def is_gone(namespace: Namespace) -> bool:
    """Return whether a namespace no longer exists."""
    try:
        namespace.cluster.api.get(f"/api/v1/namespaces/{namespace.name}")
    except ApiRefused as refusal:
        return refusal.status == NOT_FOUND
    return False
