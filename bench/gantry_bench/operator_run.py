"""One run of the operator's benchmark: many groups created at once, until all are Ready, and then a rest.

    a real API server, whose audit log has every call of the operator's account
    the operator, a process of its own, with exactly the permissions of its chart
    stand-ins for the processes on nodes, in this process

At rest, brokers store messages and sidecars renew Leases as usual. What is measured then is the operator's reaction to
both.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import aiohttp
import msgspec
import yaml
from api_server import ApiServer, api_server, path_of
from prometheus_client.parser import text_string_to_metric_families

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import Cores, OtherWork, read_process_cpu_seconds
from gantry_bench.operator_cluster import NAMESPACE, StandInCluster
from gantry_bench.operator_figures import Buckets, OperatorReport, OperatorScale, Phase, calls_between, quantile
from gantry_bench.operator_sidecars import StandInSidecars
from gantry_bench.processes import ROOT
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.reading import group_of
from gantry_testing.ports import free_ports
from gantry_testing.programs import kubernetes_program

SYSTEM: Final = "gantry-system"
ACCOUNT: Final = f"system:serviceaccount:{SYSTEM}:gantry-operator"
SPEC: Final[dict[str, Any]] = {}
"""The spec of every group: the defaults."""

START_S: Final = 180.0
LOG_SHOWN: Final = 3000


class OperatorSample(NamedTuple):
    """One sample of the operator's counters."""

    at: datetime
    monotonic_s: float
    buckets: Buckets
    rounds: int
    own_calls: int
    own_calls_s: float
    unexpected_errors: int
    cpu_s: float


@final
class OperatorChild:
    """The operator process that is measured."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        [self.port] = free_ports(1)
        self.log: Final = folder / "operator.log"
        words = ["--image", "gantry:bench", "--kubeconfig", str(kubeconfig), "--listen", f"127.0.0.1:{self.port}"]
        with self.log.open("wb") as file:
            self.process: Final = subprocess.Popen(
                [sys.executable, "-m", "gantry_operator", *words, "--namespace", SYSTEM],
                env={**os.environ, "POD_NAME": "gantry-operator-0"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def wait_leading(self) -> None:
        """Wait until the operator leads. Raises BenchmarkFailed."""
        deadline = time.monotonic() + START_S
        while "acquired leadership" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"the operator did not become leader: {self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self) -> str:
        """Return the end of the operator's log."""
        return self.log.read_text()[-LOG_SHOWN:]

    def memory(self, name: str) -> int:
        """Return the bytes of `VmRSS`, the present size, or of `VmHWM`, the peak."""
        found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        if found is None:
            raise BenchmarkFailed(f"the operator has ended: {self.log_tail()}")
        return int(found[1]) * 1024

    async def read_sample(self) -> OperatorSample:
        """Read the operator's metrics and the kernel's figures about its process."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
        values: dict[str, float] = {}
        buckets: dict[float, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
                if sample.name == "gantry_operator_reconcile_seconds_bucket":
                    buckets[float(sample.labels["le"])] = sample.value
        return OperatorSample(
            datetime.now(UTC), time.monotonic(), buckets, int(buckets[float("inf")]),
            int(values.get("gantry_operator_api_calls_total", 0)),
            values.get("gantry_operator_api_call_seconds_sum", 0.0),
            int(values["gantry_operator_unexpected_errors_total"]),
            read_process_cpu_seconds(self.process.pid),
        )  # fmt: skip


@contextmanager
def start_operator(server: ApiServer, folder: Path) -> Iterator[OperatorChild]:
    """Start an operator and wait until it leads."""
    child = OperatorChild(server.kubeconfig(folder, SYSTEM, "gantry-operator"), folder)
    try:
        child.wait_leading()
        yield child
    finally:
        child.process.kill()
        child.process.wait()


@contextmanager
def start_audited_server(folder: Path) -> Iterator[ApiServer]:
    """Start an API server with all objects of the operator's chart, which logs the operator's requests in
    `audit.log`."""
    rules = [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}]
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
    (folder / "policy.json").write_text(json.dumps(policy))
    options = (f"--audit-policy-file={folder}/policy.json", f"--audit-log-path={folder}/audit.log")
    with api_server(folder, *options) as server:
        documents = [yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())]
        documents += [one for one in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()) if one]
        documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for document in documents:
            status, answer = server.apply(path_of(document), document)
            if status not in (200, 201):
                raise BenchmarkFailed(f"the API server refuses {document['kind']}: {answer}")
        while server.ask("GET", "/apis/gantry.dev/v1alpha1/brokergroups")[0] != 200:
            time.sleep(0.05)
        yield server


def measure(scale: OperatorScale, cores: Cores, folder: Path, report_progress: Callable[[str], None]) -> OperatorReport:
    """Run the whole measurement. Raises BenchmarkFailed."""
    if kubernetes_program("kube-apiserver") is None or kubernetes_program("etcd") is None:
        raise BenchmarkFailed("no API server program found; run scripts/kubernetes")
    with OtherWork() as others:
        report_progress("an API server and the operator")
        with start_audited_server(folder) as server, start_operator(server, folder) as child:
            try:
                report = asyncio.run(_run(scale, server.url, child, report_progress))
            except* BenchmarkFailed as group:
                raise _first(group) from group
    return msgspec.structs.replace(report, other_cores=others.cores)


def _first(group: BaseExceptionGroup[BenchmarkFailed]) -> BenchmarkFailed:
    one = group.exceptions[0]
    return _first(one) if isinstance(one, BaseExceptionGroup) else one


def group_spec() -> Spec:
    """Return the spec of every group."""
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}}
    return group_of(head | {"spec": SPEC}).spec


async def _run(
    scale: OperatorScale, url: str, child: OperatorChild, report_progress: Callable[[str], None]
) -> OperatorReport:
    async with (
        StandInSidecars(group_spec()) as sidecars,
        StandInCluster(url, sidecars) as cluster,
        asyncio.TaskGroup() as tasks,
    ):
        cluster_task = tasks.create_task(cluster.run())
        try:
            report = await _run_measured(scale, cluster, child, report_progress)
        finally:
            cluster_task.cancel()
            await cluster.close()
    return report


async def _run_measured(
    scale: OperatorScale, cluster: StandInCluster, child: OperatorChild, report_progress: Callable[[str], None]
) -> OperatorReport:
    names = [f"orders-{chr(ord('a') + number % 26)}{number:02}" for number in range(scale.groups)]
    report_progress(f"{scale.groups} groups at once")
    before = await child.read_sample()
    await asyncio.gather(*(cluster.create_group(name, SPEC) for name in names))
    await _wait_all_ready(scale, cluster, child)
    creation = _phase("creation", before, await child.read_sample(), child)
    took = sorted(at - before.monotonic_s for at in cluster.ready_s.values())
    report_progress(f"all are Ready after {took[-1]:.1f} s; a rest of {scale.settle_s + scale.rest_s:g} s")
    await asyncio.sleep(scale.settle_s)
    renewals, before = cluster.renewals, await child.read_sample()
    await asyncio.sleep(scale.rest_s)
    after = await child.read_sample()
    return OperatorReport(
        groups=scale.groups,
        pods=cluster.pods,
        ready_p50_s=statistics.median(took),
        ready_max_s=took[-1],
        creation=creation,
        rest=_phase("rest", before, after, child),
        peak_bytes=child.memory("VmHWM"),
        renewals=cluster.renewals - renewals,
        unexpected_errors=after.unexpected_errors,
        not_ready=sum(not is_ready for is_ready in cluster.is_ready.values()),
        other_cores=0.0,
    )


async def _wait_all_ready(scale: OperatorScale, cluster: StandInCluster, child: OperatorChild) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(scale.ready_s_max):
            while len(cluster.ready_s) < scale.groups:  # noqa: ASYNC110  (what is waited for is counted by a watch)
                await asyncio.sleep(0.05)
            return
    raise BenchmarkFailed(
        f"{len(cluster.ready_s)} of {scale.groups} groups were Ready within {scale.ready_s_max:g} s; "
        f"the operator's log: {child.log_tail()}"
    )


def _phase(name: str, before: OperatorSample, after: OperatorSample, child: OperatorChild) -> Phase:
    seconds = after.monotonic_s - before.monotonic_s
    own_calls = after.own_calls - before.own_calls
    lines = (child.log.parent / "audit.log").read_text().splitlines()
    return Phase(
        name=name,
        seconds=seconds,
        rounds=after.rounds - before.rounds,
        p50_ms=quantile(before.buckets, after.buckets, 0.50) * 1000,
        p95_ms=quantile(before.buckets, after.buckets, 0.95) * 1000,
        calls=calls_between(lines, before.at, after.at),
        own_calls=own_calls,
        call_ms=(after.own_calls_s - before.own_calls_s) / own_calls * 1000 if own_calls else 0.0,
        core_share=(after.cpu_s - before.cpu_s) / seconds,
        resident_bytes=child.memory("VmRSS"),
    )
