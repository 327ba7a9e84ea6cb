"""A small part of the Java clients' access control run; the whole is `e2e/interop/run.py acl`.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import acl, drivers, peers, versions
from gantry_interop.processes import Nursery

COUNT = 200
RETRY_COUNT = 12
SCENARIOS = ("sync", "transactions")
DENIED_WITH_16 = ("no account sends", "wrong secret pulls", "sends to a foreign topic", "makes a topic")


def verdict(scenario: str, *, is_kept: bool = True) -> drivers.Verdict:
    """Return the verdict of a scenario, which kept its rules or broke one."""
    return drivers.Verdict(versions.PEER, scenario, kept=is_kept)


def test_report_detects_every_fault() -> None:
    """Every single failed scenario fails the whole; one that was not run counts as failed."""
    good, bad = verdict("sync"), verdict("acl", is_kept=False)
    assert acl.AclReport([good], [verdict("acl")]).kept
    assert not acl.AclReport([good], [bad]).kept
    assert not acl.AclReport([verdict("sync", is_kept=False)], [verdict("acl")]).kept
    assert not acl.AclReport([good], []).kept
    assert not acl.AclReport([], [verdict("acl")]).kept


@pytest.mark.verify
@pytest.mark.needs_java
@pytest.mark.parametrize("client", [pytest.param(versions.PEER, marks=pytest.mark.slow), versions.OLDEST])
def test_java_clients_do_what_they_are_permitted(client: str, tmp_path: Path) -> None:
    """With a named account; wrong credentials, missing permissions and weak signatures get an exception, and nothing is
    stored.
    """
    options = drivers.DriverOptions(
        "", COUNT, RETRY_COUNT, 7, peers.SHORT_DELAY_LEVELS, "acl", scenario_seconds_max=240.0
    )

    with Nursery(tmp_path / "logs") as nursery:
        found = acl.run_scenarios(nursery, [client], options, tmp_path, scenarios=SCENARIOS)

    assert [(one.scenario, one.broken) for one in found.verdicts] == [(name, []) for name in SCENARIOS]
    assert [(one.scenario, one.broken) for one in found.denials] == [("acl", []), ("acl", []), ("strict", [])]
    details_with_open_names = found.denials[1].details
    assert all(" 16: " in details_with_open_names[what] for what in DENIED_WITH_16), details_with_open_names


@pytest.mark.slow
@pytest.mark.needs_java
def test_missing_denials_are_found_without_access_control(tmp_path: Path) -> None:
    """The twin: against a broker without access control the scenario finds what is not denied, and what is stored."""
    options = drivers.DriverOptions(
        "", COUNT, RETRY_COUNT, 7, peers.SHORT_DELAY_LEVELS, "twin", scenario_seconds_max=120.0
    )
    layout = peers.Layout(tmp_path / "peer")
    accounts = acl.Account.new("named"), acl.Account.new("admin")
    guarded = acl.GuardedServers(layout, *accounts, is_name_server_guarded=False)

    with Nursery(tmp_path / "logs") as nursery:
        peer = peers.start("gantry", nursery, layout)
        guarded.write_accounts([options.run], [versions.PEER])
        [found] = drivers.run_scenarios(
            nursery, versions.PEER, acl.DENIALS, guarded.add_accounts(options), tmp_path / "home"
        )
        peer.stop()

    assert not found.kept
    assert "nothing that is denied is stored" in found.broken
    assert "wrong secret sends: denied" in found.broken and "makes a topic: denied" in found.broken
