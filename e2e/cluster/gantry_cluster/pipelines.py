"""Pipelines that the operator runs: a manifest, a claim, a status, and the files on the claim.

`read_archived` reads an archive without Spark: as plain Parquet files in a directory, in a pod.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import final

from gantry_cluster.api import Object
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import DeadlineExceeded
from gantry_cluster.groups import LINES, operator_log
from gantry_cluster.pods import Namespace, container, pod_spec

PLURALS = {"TopicArchive": "topicarchives", "LogAudit": "logaudits", "TopicAnalytics": "topicanalytics"}
USER = 185
"""The user of Spark's image."""

READER = "reader"
"""The name of the pod that reads a claim."""

MOUNTED = "/claim"
"""Where the reader mounts the claim."""

PRINT_ROWS = f"""
import json
import pyarrow.dataset as datasets
files = datasets.dataset("{MOUNTED}", format="parquet", partitioning="hive", exclude_invalid_files=False)
rows = files.to_table(columns=["topic", "body"]).to_pylist() if files.files else []
print(json.dumps([[row["topic"], row["body"].decode()] for row in rows]))
"""
"""Prints topic and body of all rows in the files on the claim, as JSON."""


@final
@dataclass(frozen=True)
class Pipeline:
    """A pipeline resource in a namespace."""

    namespace: Namespace
    kind: str
    name: str
    image: str
    """The image of drivers and executors."""

    @property
    def base(self) -> str:
        """The base of the names of its objects."""
        ends = {"TopicArchive": "archive", "LogAudit": "audit", "TopicAnalytics": "analytics"}
        return f"{self.name}-{ends[self.kind]}"

    def apply(self, spec: Object) -> None:
        """Apply a manifest as `kubectl apply` does, with the image of the nodes."""
        engine = {"image": self.image, **spec.get("engine", {})}
        document = {"apiVersion": "gantry.dev/v1alpha1", "kind": self.kind, "spec": spec | {"engine": engine}}
        document["metadata"] = {"name": self.name, "namespace": self.namespace.name}
        self.namespace.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def read(self) -> Object:
        """Read the resource with its status."""
        path = self.namespace.path(PLURALS[self.kind], "apis/gantry.dev/v1alpha1")
        return self.namespace.cluster.api.get(f"{path}/{self.name}")

    def status(self) -> Object:
        """Return the status that the operator wrote; empty before the first reconciliation."""
        found: Object = self.read().get("status", {})
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        """Return the status and the reason of a condition."""
        for one in self.status().get("conditions", []):
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""

    def pods(self, component: str = "driver") -> list[Object]:
        """List the pods that have not ended."""
        selector = f"gantry.dev%2Fpipeline%3D{self.base}%2Capp.kubernetes.io%2Fcomponent%3D{component}"
        found = self.namespace.cluster.api.items(f"{self.namespace.path('pods')}?labelSelector={selector}")
        return [pod for pod in found if pod["status"].get("phase") in ("Pending", "Running")]

    def running_pods(self, component: str = "driver") -> list[str]:
        """Return the names of pods whose container runs."""
        return sorted(pod["metadata"]["name"] for pod in self.pods(component) if pod["status"]["phase"] == "Running")

    def kill(self, pod: str) -> None:
        """Delete a pod at once, without a grace period, as when its machine fails."""
        words = ("delete", "pod", pod, f"--namespace={self.namespace.name}", "--grace-period=0", "--force")
        self.namespace.cluster.kubectl(*words)

    def wait(self, what: str, holds: object, seconds_max: float) -> None:
        """Wait for a condition. The error contains pods, events, status and logs."""
        assert callable(holds), "expected a function as the condition"
        try:
            wait_until(f"{self.kind} {self.name}: {what}", lambda: bool(holds()), seconds_max)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.diagnosis()}") from None

    def diagnosis(self) -> str:
        """Return pods, events, status, and the last lines of the logs of drivers and operators."""
        cluster, namespace = self.namespace.cluster, f"--namespace={self.namespace.name}"
        pods = cluster.kubectl("get", "pods", namespace, "--show-labels", "--output=wide")
        events = cluster.kubectl("get", "events", namespace, "--sort-by=.lastTimestamp")
        label = f"--selector=gantry.dev/pipeline={self.base}"
        logs = cluster.kubectl("logs", namespace, label, f"--tail={LINES}", "--ignore-errors", "--prefix")
        status = json.dumps(self.status(), indent=1)
        return "\n".join((pods, *events.splitlines()[-LINES:], logs, status, operator_log(cluster)))

    # -- the claim -----------------------------------------------------------------------------------------------------

    def claim(self, name: str, size: str = "1Gi") -> None:
        """Create a claim of the cluster's default class."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        document: Object = {"metadata": {"name": name}, "spec": spec}
        self.namespace.cluster.api.create(self.namespace.path("persistentvolumeclaims"), document)

    def start_reader(self, claim: str) -> None:
        """Start an idle pod that mounts the claim."""
        mounts = [{"name": "claim", "mountPath": MOUNTED}, {"name": "tmp", "mountPath": "/tmp"}]
        main = container("main", "import signal; signal.pause()", image=self.image, volumeMounts=mounts)
        volumes = [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}, {"name": "tmp", "emptyDir": {}}]
        spec = pod_spec(main, volumes=volumes)
        spec["securityContext"] |= {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
        self.namespace.create_pod(READER, spec)
        self.namespace.wait_ready(READER)

    def read_archived(self, topic: str) -> list[str]:
        """Return the bodies of a topic in all files on the claim."""
        rows: list[list[str]] = json.loads(self.namespace.run_python(READER, PRINT_ROWS) or "[]")
        return sorted(body for of, body in rows if of == topic)

    def verify(self) -> str:
        """Run `gantry pipeline verify` in the reader's pod. Raises ``CommandFailed``."""
        words = ("python", "-m", "gantry_pipelines", "verify", "--set", f"runtime.destination={MOUNTED}")
        return self.namespace.cluster.kubectl("exec", READER, f"--namespace={self.namespace.name}", "--", *words)
