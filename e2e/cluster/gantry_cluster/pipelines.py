"""Pipelines that the operator runs, as a user has them: a manifest, a claim, a status; and what lies on the claim.

Whoever reads an archive here knows nothing of Spark: plain Parquet files in a directory, listed and read in a pod.
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
READER = "reader"
MOUNTED = "/claim"
LISTED = f"""
import json
import pyarrow.dataset as datasets
files = datasets.dataset("{MOUNTED}", format="parquet", partitioning="hive", exclude_invalid_files=False)
rows = files.to_table(columns=["topic", "body"]).to_pylist() if files.files else []
print(json.dumps([[row["topic"], row["body"].decode()] for row in rows]))
"""


@final
@dataclass(frozen=True)
class Pipeline:
    """A resource in a namespace."""

    space: Namespace
    kind: str
    name: str
    image: str

    @property
    def base(self) -> str:
        """What its objects are called."""
        ends = {"TopicArchive": "archive", "LogAudit": "audit", "TopicAnalytics": "analytics"}
        return f"{self.name}-{ends[self.kind]}"

    def apply(self, spec: Object) -> None:
        """As `kubectl apply` of a manifest does, with the image that nodes have."""
        engine = {"image": self.image, **spec.get("engine", {})}
        document = {"apiVersion": "gantry.dev/v1alpha1", "kind": self.kind, "spec": spec | {"engine": engine}}
        document["metadata"] = {"name": self.name, "namespace": self.space.name}
        self.space.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def read(self) -> Object:
        """It, with its status."""
        path = self.space.path(PLURALS[self.kind], "apis/gantry.dev/v1alpha1")
        return self.space.cluster.api.get(f"{path}/{self.name}")

    def status(self) -> Object:
        """What the operator says; nothing before it has looked."""
        found: Object = self.read().get("status", {})
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        for one in self.status().get("conditions", []):
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""

    def pods(self, component: str = "driver") -> list[Object]:
        """Those that have not ended."""
        selector = f"gantry.dev%2Fpipeline%3D{self.base}%2Capp.kubernetes.io%2Fcomponent%3D{component}"
        found = self.space.cluster.api.items(f"{self.space.path('pods')}?labelSelector={selector}")
        return [pod for pod in found if pod["status"].get("phase") in ("Pending", "Running")]

    def running(self, component: str = "driver") -> list[str]:
        """Names of pods whose container runs."""
        return sorted(pod["metadata"]["name"] for pod in self.pods(component) if pod["status"]["phase"] == "Running")

    def kill(self, pod: str) -> None:
        """At once, as when its machine has no time for goodbyes."""
        words = ("delete", "pod", pod, f"--namespace={self.space.name}", "--grace-period=0", "--force")
        self.space.cluster.kubectl(*words)

    def wait(self, what: str, holds: object, seconds_max: float) -> None:
        """Until it is so; what a person wants to read stands in the error."""
        assert callable(holds), "a question that can be asked"
        try:
            wait_until(f"{self.kind} {self.name}: {what}", lambda: bool(holds()), seconds_max)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.account()}") from None

    def account(self) -> str:
        """Pods, events, status, and the last lines of drivers and operators."""
        cluster, space = self.space.cluster, f"--namespace={self.space.name}"
        pods = cluster.kubectl("get", "pods", space, "--show-labels", "--output=wide")
        events = cluster.kubectl("get", "events", space, "--sort-by=.lastTimestamp")
        label = f"--selector=gantry.dev/pipeline={self.base}"
        said = cluster.kubectl("logs", space, label, f"--tail={LINES}", "--ignore-errors", "--prefix")
        status = json.dumps(self.status(), indent=1)
        return "\n".join((pods, *events.splitlines()[-LINES:], said, status, operator_log(cluster)))

    # -- the claim -----------------------------------------------------------------------------------------------------

    def claim(self, name: str, size: str = "1Gi") -> None:
        """A claim of the cluster's default class."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        document: Object = {"metadata": {"name": name}, "spec": spec}
        self.space.cluster.api.create(self.space.path("persistentvolumeclaims"), document)

    def start_reader(self, claim: str) -> None:
        """A pod that sees the claim, and does nothing by itself."""
        mounts = [{"name": "claim", "mountPath": MOUNTED}, {"name": "tmp", "mountPath": "/tmp"}]
        main = container("main", "import signal; signal.pause()", image=self.image, volumeMounts=mounts)
        volumes = [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}, {"name": "tmp", "emptyDir": {}}]
        spec = pod_spec(main, volumes=volumes)
        spec["securityContext"] |= {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
        self.space.pod(READER, spec)
        self.space.wait_ready(READER)

    def archived(self, topic: str) -> list[str]:
        """Bodies of a topic in all files that lie there now, by a plain listing."""
        rows: list[list[str]] = json.loads(self.space.run(READER, LISTED) or "[]")
        return sorted(body for of, body in rows if of == topic)

    def verify(self) -> str:
        """`gantry pipeline verify` in the reader's pod. Raises ``CommandFailed``."""
        words = ("python", "-m", "gantry_pipelines", "verify", "--set", f"here.destination={MOUNTED}")
        return self.space.cluster.kubectl("exec", READER, f"--namespace={self.space.name}", "--", *words)
