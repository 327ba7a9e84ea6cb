"""What is measured: processes by /proc, files by kind, internal tables by metrics and documents, and latencies.

Values that are unknown at the moment, for example because a process restarts, are left out of the sample.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

from gantry_bench.machine import others_cpu_seconds, read_processes

from gantry_client import Admin, ClientError
from gantry_soak.group import SoakGroup
from gantry_soak.ledger import Ledger
from gantry_soak.records import Latency, ProcessSample, Sample

HTTP_TIMEOUT_S: Final = 5.0
CLIENT: Final = "client"
"""The name of the process of the load, whose client library is Gantry's, too."""

KINDS: Final = {
    "commitlog": "commit log", "consumequeue": "consume queues", "index": "key index", "config": "tables",
    "timerwheel": "timers", "timerlog": "timers", "timers": "timers", "logs": "logs",
    "set-aside": "damage set aside",
}  # fmt: skip
"""Kinds of files, by the folder in a store."""

METRICS: Final = frozenset({
    "gantry_connections", "gantry_queues", "gantry_held_sends", "gantry_unfinished_frame_bytes",
    "gantry_unread_reply_bytes", "gantry_pop_inflight_messages", "gantry_pop_checkpoints",
    "gantry_pop_unflushed_offsets", "gantry_sidecar_http_connections", "gantry_sidecar_event_streams",
    "gantry_sidecar_log_readers", "gantry_proxy_clients", "gantry_proxy_client_settings_bytes",
    "gantry_proxy_telemetry_streams", "gantry_proxy_connections", "gantry_proxy_held_bytes",
    "gantry_proxy_messages_in_flight", "gantry_proxy_calls_running",
})  # fmt: skip
METRIC_LINE: Final = re.compile(r"^(?P<name>\w+)(?:\{[^}]*\})? (?P<value>\S+)")
MEMORY_LINE: Final = re.compile(r"^(?P<name>Pss|Pss_Anon): +(?P<kib>\d+) kB$", re.MULTILINE)


def read_process(name: str, pid: int, role: str) -> ProcessSample | None:
    """Measure a process; None if it does not exist any more."""
    folder = Path(f"/proc/{pid}")
    try:
        sizes = {found["name"]: int(found["kib"]) * 1024 for found in
                 MEMORY_LINE.finditer((folder / "smaps_rollup").read_text())}  # fmt: skip
        return ProcessSample(
            name=name,
            life=f"{pid} {role}".rstrip(),
            anonymous=sizes["Pss_Anon"],
            proportional=sizes["Pss"],
            descriptors=len(list((folder / "fd").iterdir())),
            threads=len(list((folder / "task").iterdir())),
            mappings=(folder / "maps").read_text().count("\n"),
        )
    except (OSError, KeyError):
        return None


def allocated_bytes(folder: Path) -> dict[str, int]:
    """Return the allocated bytes of a store by kind of file."""
    found: dict[str, int] = {}
    for name_of_folder, _, files in os.walk(folder):
        path = Path(name_of_folder)
        top = path.relative_to(folder).parts[:1]
        kind = KINDS.get(top[0], "other files") if top else "other files"
        for name in files:
            try:
                found[kind] = found.get(kind, 0) + (path / name).stat().st_blocks * 512
            except OSError:  # deleted meanwhile
                continue
    return found


def read_metrics(text: str) -> dict[str, float]:
    """Return the metrics that are lengths of tables, without their prefix; those with labels are summed up."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if (match := METRIC_LINE.match(line)) and match["name"] in METRICS:
            name = match["name"].removeprefix("gantry_").replace("_", " ")
            found[name] = found.get(name, 0.0) + float(match["value"])
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]


def summarise(latencies: Mapping[str, Sequence[float]]) -> list[Latency]:
    """Return p50 and p99 of sorted latencies by operation."""
    return [
        Latency(
            name=name, count=len(values), p50_ms=round(percentile(values, 0.5), 3),
            p99_ms=round(percentile(values, 0.99), 3),
        )
        for name, values in latencies.items()
        if values
    ]  # fmt: skip


def fetch_text(url: str, token: str = "") -> str:
    """Return the body at a URL. Raises OSError."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=HTTP_TIMEOUT_S) as reply:
        return str(reply.read().decode())


@final
class Sampler:
    """Takes samples of a group. Owned by one loop."""

    def __init__(self, group: SoakGroup, ledger: Ledger, admin: Admin, own_pid: int) -> None:
        self._group: Final = group
        self._ledger: Final = ledger
        self._admin: Final = admin
        self._own_pid: Final = own_pid
        self._began_s: Final = time.monotonic()
        self._others: tuple[float, float] | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the sampler was created, the time of all records."""
        return time.monotonic() - self._began_s

    async def take(self) -> Sample:
        """Measure processes, files, tables and latencies once."""
        roles = {one.name: one.role for one in self._group.members()}
        pids = self._group.processes()
        processes, disk = await asyncio.to_thread(self._measure, pids, roles)
        tables = await self._tables(pids)
        return Sample(
            at_s=round(self.elapsed_s, 1),
            processes=processes,
            disk=disk,
            tables=tables,
            latencies=summarise(self._ledger.latencies.take()),
            done=dict(self._ledger.done),
            other_cores=round(self._other_cores(pids), 2),
        )

    def _measure(self, pids: Mapping[str, int], roles: Mapping[str, str]) -> tuple[list[ProcessSample], dict[str, int]]:
        found = [read_process(name, pid, roles.get(name, "")) for name, pid in {**pids, CLIENT: self._own_pid}.items()]
        disk = {}
        for member in self._group.record.members:
            for kind, size in allocated_bytes(Path(member.store)).items():
                disk[f"{member.name}/{kind}"] = size
        logs = allocated_bytes(self._group.folder / "logs")
        disk["group/logs"] = sum(logs.values())
        return [one for one in found if one is not None], disk

    async def _tables(self, pids: Mapping[str, int]) -> dict[str, float]:
        record, token = self._group.record, self._group.state.token()
        urls = {one.name: (f"{one.sidecar_url}/metrics", token) for one in record.members if one.name in pids}
        urls |= {one.name: (f"http://{one.http_address}/metrics", "") for one in record.proxies if one.name in pids}
        texts = await asyncio.gather(
            *(asyncio.to_thread(fetch_text, url, secret) for url, secret in urls.values()), return_exceptions=True
        )
        found = {
            f"{name}/{table}": value
            for name, text in zip(urls, texts, strict=True)
            if isinstance(text, str)
            for table, value in read_metrics(text).items()
        }
        for member in record.members:
            found |= await self._documents(member.name, f"{record.host}:{member.port}")
        return found

    async def _documents(self, name: str, address: str) -> dict[str, float]:
        """Return the lengths of a broker's tables of topics, groups and offsets."""
        brokers = self._admin.brokers
        try:
            async with asyncio.timeout(HTTP_TIMEOUT_S):
                topics, groups = await brokers.topic_table(address), await brokers.group_table(address)
                offsets = await brokers.offset_table(address)
        except (ClientError, TimeoutError):
            return {}
        return {
            f"{name}/topics": len(topics), f"{name}/groups": len(groups), f"{name}/offset tables": len(offsets),
            f"{name}/offsets": sum(map(len, offsets.values())),
        }  # fmt: skip

    def _other_cores(self, pids: Mapping[str, int]) -> float:
        """Return how many cores' worth of time other programs have used since the last call."""
        now = (time.monotonic(), others_cpu_seconds(read_processes(), (*pids.values(), self._own_pid)))
        before, self._others = self._others, now
        if before is None:
            return 0.0
        return max(0.0, (now[1] - before[1]) / max(now[0] - before[0], 0.1))
