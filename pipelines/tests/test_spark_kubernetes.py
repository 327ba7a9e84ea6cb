"""`engine.mode: kubernetes` with a real API server: Spark creates executor pods with the driver's rights.

There is no node, so the test acts as the kubelet: it starts an executor's container as a process, and sets the pod's
status to Running. Everything else is as in a cluster: the account, its role, pod security, the template, and Spark's
own scheduler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, groups_server, path_of
from charts_scene import ROOT
from pipelines_scene import pipeline, rendered
from test_pipelines_objects import pod_templates

pytestmark = [pytest.mark.needs_spark, pytest.mark.needs_api_server, pytest.mark.slow]

DEADLINE_S = 900
PODS = "/api/v1/namespaces/shop/pods"
EXECUTORS = f"{PODS}?labelSelector=spark-role%3Dexecutor"
PROGRAM = """
import json, os, sys
from gantry_pipelines.config import read_config
from gantry_pipelines.engine import spark_conf
from gantry_pipelines.session import spark_session
from gantry_spec.pipelines.kinds import ArchiveSpec

config = read_config(open(sys.argv[1]).read(), ArchiveSpec, "TopicArchive", sys.argv[2:])
spark = spark_session("orders", conf=spark_conf(config))
rows = spark.range(0, 1000, 1, 4).mapInArrow(lambda batches: (one for one in batches), "id long").collect()
print(json.dumps({"sum": sum(row.id for row in rows), "app": spark.sparkContext.applicationId}), flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the operator's manifests, which have the executors' role."""
    with groups_server(tmp_path_factory.mktemp("api")) as made:
        for document in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()):
            if document:
                assert made.apply(path_of(document), document)[0] in (200, 201)
        yield made


class Kubelet:
    """Starts the container of each executor pod as a process, once."""

    def __init__(self, server: ApiServer, folder: Path, stack: ExitStack) -> None:
        self.server, self.folder, self.stack = server, folder, stack
        self.seen: dict[str, dict[str, Any]] = {}

    def start_new_pods(self) -> None:
        """Start the executor pods that Spark has created since the last call."""
        status, answer = self.server.ask("GET", EXECUTORS)
        assert status == 200, answer
        for pod in answer["items"]:
            name = pod["metadata"]["name"]
            if name not in self.seen:
                self.seen[name] = pod
                self._start(name, pod)

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        [container] = pod["spec"]["containers"]
        assert container["args"] == ["executor"], "expected the argument executor for the program of the image"
        variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        fields = {
            one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one
        }
        places = {"status.podIP": "127.0.0.1", "metadata.name": name}
        variables |= {key: places[path] for key, path in fields.items()}
        variables |= {"SPARK_LOCAL_DIRS": str(self.folder / name), "HOME": str(self.folder)}
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "gantry_pipelines", *container["args"]],
            env={**os.environ, **variables}, stdout=log, stderr=log, cwd=self.folder,
        )  # fmt: skip
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        running = {"name": container["name"], "ready": True, "restartCount": 0, "image": "x", "imageID": "x"}
        running["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        change = {"status": {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": [running]}}
        status, answer = self.server.ask("PATCH", f"{PODS}/{name}/status", change, "application/merge-patch+json")
        assert status == 200, answer


def test_driver_creates_and_deletes_executor_pods(server: ApiServer, tmp_path: Path) -> None:
    """Two of them, admitted under `restricted` and owned by the driver's pod, do the work; no right is missing."""
    one = pipeline(
        schedule="@hourly",
        engine={"mode": "kubernetes", "driver": {"heap": "512Mi"},
                "executor": {"instances": 2, "heap": "512Mi", "memoryOverhead": "384Mi"}},
    )  # fmt: skip
    made = rendered(one)
    for document in made[:-1]:
        assert server.apply(path_of(document), document)[0] in (200, 201)
    [config] = [document for document in made if document["kind"] == "ConfigMap"]
    (tmp_path / "pipeline.json").write_text(config["data"]["pipeline.json"])
    (tmp_path / "executor.json").write_text(config["data"]["executor.json"])
    driver = pod_templates(made)["driver"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": driver["metadata"] | {"name": "the-driver"}}
    status, answer = server.ask("POST", PODS, pod | {"spec": driver["spec"]})
    assert status == 201, answer
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    assert server.ask("PATCH", f"{PODS}/the-driver/status", ready, "application/merge-patch+json")[0] == 200
    kubeconfig = json.loads(server.kubeconfig(tmp_path, "shop", "orders-archive").read_text())
    (tmp_path / "token").write_text(kubeconfig["users"][0]["user"]["token"])
    runtime = {
        "spark.master": f"k8s://{server.url}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.port": "0",
        "spark.driver.blockManager.port": "0",
        "spark.blockManager.port": "0",
        "spark.kubernetes.executor.podTemplateFile": str(tmp_path / "executor.json"),
        "spark.kubernetes.authenticate.oauthTokenFile": str(tmp_path / "token"),
        "spark.kubernetes.authenticate.caCertFile": kubeconfig["clusters"][0]["cluster"]["certificate-authority"],
        "spark.log.level": "WARN",
    }
    document = json.loads(config["data"]["pipeline.json"])
    document["runtime"]["sparkConf"] |= runtime
    (tmp_path / "pipeline.json").write_text(json.dumps(document))
    (tmp_path / "program.py").write_text(PROGRAM)

    with ExitStack() as stack, (tmp_path / "driver.log").open("wb") as log, (tmp_path / "output").open("wb") as out:
        kubelet = Kubelet(server, tmp_path, stack)
        process = subprocess.Popen(
            [sys.executable, "program.py", "pipeline.json"], cwd=tmp_path, stdout=out, stderr=log,
            env={**os.environ, "POD_NAME": "the-driver"},
        )  # fmt: skip
        stack.callback(process.kill)
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None:
            assert time.monotonic() < deadline, (tmp_path / "driver.log").read_text()[-3000:]
            kubelet.start_new_pods()
            time.sleep(0.2)
    output, text = (tmp_path / "output").read_text(), (tmp_path / "driver.log").read_text()

    assert process.returncode == 0, text[-3000:]
    assert json.loads(output)["sum"] == sum(range(1000))
    assert len(kubelet.seen) == 2, sorted(kubelet.seen)
    for name, seen in kubelet.seen.items():
        [owner] = seen["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Pod", "the-driver")
        assert name.startswith("orders-archive-")
        [container] = seen["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"] == "896Mi"
    assert "orbidden" not in text, [line for line in text.splitlines() if "orbidden" in line]
    assert [
        one for one in server.ask("GET", EXECUTORS)[1]["items"] if not one["metadata"].get("deletionTimestamp")
    ] == []
