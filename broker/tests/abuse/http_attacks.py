"""The attacks on the sidecar: every attack of `bench/http_abuse.py` at a real sidecar beside a real broker."""

import asyncio
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "operator" / "tests"))

from admin_scene import broker_process, sidecar_process
from http_abuse import ATTACKS, HttpAbuseReport, run_http_abuse

HEADLINES: Final = (
    "attack", "opened", "closed", "RSS before", "peak", "files", "peak", "p99", "slowest", "errors",
)  # fmt: skip
GROWTH_KIB_MAX: Final = 96 * 1024


def run_http(directory: Path, *, connections: int) -> list[HttpAbuseReport]:
    """Run the attacks on one sidecar in turn."""
    directory.mkdir(parents=True, exist_ok=True)
    with broker_process(directory) as _, sidecar_process(directory, "--open-reads") as sidecar:
        sidecar.wait_ready()
        host, _, port = sidecar.address.rpartition(":")
        pid = sidecar.child.process.pid
        return [
            asyncio.run(run_http_abuse((host, int(port)), pid, attack, connections=connections, rounds=10))
            for attack in ATTACKS
        ]


def http_row(report: HttpAbuseReport) -> list[str]:
    """Return a line of the sidecar's table."""
    asked = sum(report.answers.values())
    return [
        report.attack, str(report.connections), str(report.closed), f"{report.rss_before_kib / 1024:.0f}",
        f"{report.rss_most_kib / 1024:.0f}", str(report.descriptors_before), str(report.descriptors_most),
        f"{report.p99_ms:.1f}", f"{report.slowest_ms:.1f}", f"{sum(report.failures.values())}/{asked}",
    ]  # fmt: skip


def http_faults(report: HttpAbuseReport) -> list[str]:
    """Return the failed expectations about the sidecar."""
    found = [f"http, {report.attack}: {answer} {count} times" for answer, count in report.failures.items()]
    grown_kib = report.rss_most_kib - report.rss_before_kib
    if grown_kib > GROWTH_KIB_MAX:
        found.append(f"http, {report.attack}: memory grew by {grown_kib / 1024:.0f} MiB")
    return found
