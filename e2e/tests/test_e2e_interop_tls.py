"""A small part of the Java clients' TLS run; the whole is `e2e/interop/run.py tls`."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import drivers, peers, tls, versions
from gantry_interop.processes import Nursery

COUNT = 300
SCENARIOS = ("sync", "ordered")


def report_of(
    *, is_kept: bool = True, seen: int = 2, invalid_kept: bool = False, invalid_received: int = 0
) -> tls.TlsReport:
    """Return a report with these results of scenarios and checks."""
    verdict = drivers.Verdict(versions.PEER, "sync", kept=is_kept)
    invalid = drivers.Verdict(versions.PEER, "sync", kept=invalid_kept, received=invalid_received)
    return tls.TlsReport([verdict], [invalid], seen)


def test_report_detects_every_fault() -> None:
    """Every single failed scenario or check fails the whole; one that was not run counts as failed."""
    assert report_of().kept
    assert not report_of(is_kept=False).kept
    assert not report_of(seen=1).kept
    assert not report_of(invalid_kept=True).kept
    assert not report_of(invalid_received=1).kept
    assert not tls.TlsReport([drivers.Verdict(versions.PEER, "sync", kept=True)], [], 2).kept


@pytest.mark.verify
@pytest.mark.needs_java
@pytest.mark.parametrize("client", [pytest.param(versions.PEER, marks=pytest.mark.slow), versions.OLDEST])
def test_java_clients_use_tls(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unmodified clients with a certificate lose nothing, and invalid clients of four kinds are refused.

    Whether clients see a change of the servers' certificates is tested only by the long run.
    """
    monkeypatch.setattr(tls, "REPLACE_SECONDS", 1.0)
    options = drivers.DriverOptions("", COUNT, 0, 7, peers.SHORT_DELAY_LEVELS, "tls-slice", scenario_seconds_max=240.0)

    with Nursery(tmp_path / "logs") as nursery:
        found = tls.run_scenarios(nursery, [client], options, tmp_path, scenarios=SCENARIOS)

    assert [one.broken for one in found.verdicts] == [[]] * (len(SCENARIOS) + len(tls.ANONYMOUS_SCENARIOS))
    assert [(one.kept, one.received) for one in found.invalid] == [(False, 0)] * 4
