"""Settings that Java's admin client changes: the checks of the audit log, and the whole scenario with both clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gantry_interop import drivers, live_config, peers, versions
from gantry_interop.processes import Nursery


def line(server: str, outcome: int, *keys: str) -> dict[str, Any]:
    """Return a line of the audit log about these keys."""
    return {"server": server, "code": live_config.CODES[server], "outcome": outcome, "on": {"keys": list(keys)}}


def complete_lines() -> list[dict[str, Any]]:
    """Return the lines that one client leaves if everything is right."""
    lines = []
    for server, forbidden in live_config.FORBIDDEN.items():
        lines += [line(server, 0, "allowed"), line(server, 0, "allowed")]
        lines += [line(server, live_config.NO_PERMISSION, "allowed", key) for key in forbidden]
    return lines


def test_each_missing_line_of_the_audit_is_found() -> None:
    """A missing or doubled line, or a line with a value, breaks a rule."""
    assert live_config.broken_rules(complete_lines()) == []
    for number in range(len(complete_lines())):
        missing, twice = complete_lines(), complete_lines()
        twice.append(missing.pop(number))
        assert live_config.broken_rules(missing) and live_config.broken_rules(twice), number
    lines_with_value = complete_lines()
    lines_with_value[0]["on"]["value"] = "/elsewhere"
    assert live_config.broken_rules(lines_with_value) == ["no line contains a value, such as /elsewhere"]


def test_report_detects_every_fault() -> None:
    """A client that was not run fails the report, as does a failed check of the clients or of the audit logs."""
    kept, broken = (drivers.Verdict(versions.PEER, "change", kept=is_kept) for is_kept in (True, False))
    assert live_config.ConfigReport([kept], 1, []).kept
    assert not live_config.ConfigReport([], 1, []).kept
    assert not live_config.ConfigReport([kept, broken], 1, []).kept
    assert not live_config.ConfigReport([kept], 1, ["a promise"]).kept


@pytest.mark.verify
@pytest.mark.needs_java
@pytest.mark.parametrize("client", [pytest.param(versions.PEER, marks=pytest.mark.slow), versions.OLDEST])
def test_settings_changed_by_java_survive_a_restart(client: str, tmp_path: Path) -> None:
    """An allowed key is effective at once and after a restart; a forbidden one is refused by name; all is in the audit
    log.
    """
    options = drivers.DriverOptions("", 0, 0, 7, peers.SHORT_DELAY_LEVELS, "config-slice", scenario_seconds_max=240.0)

    with Nursery(tmp_path / "logs") as nursery:
        found = live_config.run_scenarios(nursery, [client], options, tmp_path)

    assert [one.broken for one in found.verdicts] == [[], []]
    assert found.broken == [] and found.kept
