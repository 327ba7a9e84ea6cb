"""A real Prometheus scrapes a real sidecar, and answers queries with the values of the broker.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import httpx
import pytest
import trustme
import yaml
from admin_scene import (
    READ_TOKEN,
    BrokerChild,
    SidecarChild,
    broker_process,
    sidecar_process,
    wait_for,
    write_token_files,
)

from gantry_testing.certificates import Party
from gantry_testing.ports import free_ports

pytestmark = pytest.mark.needs_prometheus

JOB: Final = "gantry"
SCRAPE: Final = "1s"


class Secured(NamedTuple):
    """How a sidecar is secured, and the credentials and authority with which Prometheus scrapes it."""

    options: list[str]
    """The options of the sidecar."""
    scrape: dict[str, Any]
    """The fields of the scrape configuration."""


def plain(folder: Path) -> Secured:
    """Options for loopback without any credentials."""
    return Secured([], {})


def with_token(folder: Path, token: str = READ_TOKEN) -> Secured:
    """Options for TLS and a token that may read; Prometheus uses ``token``."""
    party = Party(folder / "party", trustme.CA())
    tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    shown = folder / "shown"
    shown.write_text(token)
    scrape = {
        "scheme": "https",
        "tls_config": {"ca_file": str(party.authority)},
        "authorization": {"type": "Bearer", "credentials_file": str(shown)},
    }
    return Secured([*write_token_files(folder / "tokens"), *tls], scrape)


def with_certificate(folder: Path) -> Secured:
    """Options for TLS with certificates on both sides."""
    party = Party(folder / "party", trustme.CA())
    tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key), "--tls-client-ca", str(party.authority)]
    shown = {"ca_file": str(party.authority), "cert_file": str(party.chain), "key_file": str(party.key)}
    return Secured(tls, {"scheme": "https", "tls_config": shown})


@final
class Prometheus:
    """The Prometheus of the Debian package, with one target."""

    def __init__(self, folder: Path, target: str, scrape: dict[str, Any]) -> None:
        folder.mkdir(parents=True)
        job = {"job_name": JOB, "static_configs": [{"targets": [target]}], **scrape}
        document = {"global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
        subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=folder, check=True, capture_output=True)
        [port] = free_ports(1)
        self.url: Final = f"http://127.0.0.1:{port}"
        self._log: Final = folder / "log"
        with self._log.open("wb") as log:
            self._process: Final = subprocess.Popen(
                [
                    "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def ask(self, question: str) -> dict[str, float]:
        """What a query gives now, by the labels that are not the target's; nothing while nothing is known."""
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self.url}/api/v1/query", params={"query": question}, timeout=30)
            if answer.status_code == 200:
                return {self._labels(row["metric"]): float(row["value"][1]) for row in answer.json()["data"]["result"]}
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return {}

    def fault(self) -> str:
        """Why the last scrape failed; empty if it did not."""
        [target] = httpx.get(f"{self.url}/api/v1/targets", timeout=30).json()["data"]["activeTargets"]
        return str(target["lastError"])

    @staticmethod
    def _labels(metric: dict[str, str]) -> str:
        own = {name: value for name, value in metric.items() if name not in ("__name__", "instance", "job")}
        return ",".join(f"{name}={value}" for name, value in sorted(own.items()))


@contextmanager
def prometheus_at(folder: Path, sidecar: SidecarChild, scrape: dict[str, Any]) -> Iterator[Prometheus]:
    """Run Prometheus, and kill it at the end of the block."""
    found = Prometheus(folder, sidecar.address, scrape)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerChild]:
    with broker_process(tmp_path_factory.mktemp("store")) as one:
        one.send(7)
        yield one


@pytest.mark.verify
@pytest.mark.parametrize("secured", [plain, with_token, with_certificate])
def test_prometheus_scrapes_the_values_of_the_broker(broker: BrokerChild, tmp_path: Path, secured: Any) -> None:
    """Offsets, roles, and topics under the exporter's names, also with TLS and a token, or with certificates."""
    about = secured(tmp_path)
    with (
        sidecar_process(broker.store, *about.options) as sidecar,
        prometheus_at(tmp_path / "prometheus", sidecar, about.scrape) as prometheus,
    ):
        wait_for(lambda: prometheus.ask("up") == {"": 1.0}, "it is scraped")
        wait_for(
            lambda: prometheus.ask('gantry_log_position_bytes{position="wrote"}') == {"position=wrote": broker.log_end},
            "the offset is the broker's",
        )
        topics = 'rocketmq_producer_offset{topic="TopicTest"}'
        wait_for(lambda: list(prometheus.ask(topics).values()) == [7.0], "its topics are known")

        wait_for(lambda: prometheus.ask("gantry_role == 1") == {"role=master": 1.0}, "its role is known")
        wait_for(lambda: prometheus.ask("gantry_broker_loop_running") == {"": 1.0}, "its event loop runs")
        wait_for(lambda: prometheus.fault() == "", "the last scrape was a good one, as they are on an idle machine")


@pytest.mark.verify
def test_prometheus_with_a_wrong_token_is_refused(broker: BrokerChild, tmp_path: Path) -> None:
    """The twin: with another token the target is down, with a 401."""
    about = with_token(tmp_path, "another-token-0123456789")
    with (
        sidecar_process(broker.store, *about.options) as sidecar,
        prometheus_at(tmp_path / "prometheus", sidecar, about.scrape) as prometheus,
    ):
        wait_for(lambda: prometheus.ask("up") == {"": 0.0}, "it is down")
        wait_for(lambda: "401" in prometheus.fault(), "it is refused")

        assert prometheus.ask("gantry_role") == {}
