"""Pulls of a backlog, and the code path of a broker: the calculations, and the question to a new interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_bench import backlog, errors, speedups

# -- pulls of a backlog ------------------------------------------------------------------------------------------------


def test_pulls_are_compared_by_cpu_time() -> None:
    """The figure is bytes for a CPU second; without Apache there is no goal."""
    runs = [
        backlog.PullRun("compiled", 100, 3200, 4_000_000, 2.0, 0.5),
        backlog.PullRun("apache", 100, 3200, 4_000_000, 1.0, 2.0),
    ]
    both = backlog.BacklogReport(runs, {}, 0.0)

    [goal] = backlog.backlog_goals(both)

    assert (goal.measured, goal.is_met) == (4.0, True)
    assert backlog.backlog_table(both).rows == [
        ["Gantry, compiled", "2", "8", "5000.0", "32.0", "4.00"], ["Apache", "4", "2", "20000.0", "32.0", "1.00"]
    ]  # fmt: skip
    assert backlog.backlog_goals(backlog.BacklogReport(runs[:1], {"apache": "no Java"}, 0.0)) == []


# -- code paths --------------------------------------------------------------------------------------------------------


def test_code_path_is_reported_by_a_new_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of the compiled path's module decides, and not the setting that a broker gets."""
    package = tmp_path / "gantry_speedups"
    package.mkdir()
    text = "import os\nis_compiled = os.environ['GANTRY_SPEEDUPS'] != 'off'\nreason = '' if is_compiled else 'off'\n"
    (package / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert speedups.probe("auto") == speedups.CodePath("auto", True, "")
    assert speedups.probe("off") == speedups.CodePath("off", False, "off")
    (package / "__init__.py").write_text("is_compiled = True\n")
    with pytest.raises(errors.BenchmarkFailed, match="still taken"):
        speedups.probe("off")
    (package / "__init__.py").write_text("import no_such_module\n")
    with pytest.raises(errors.BenchmarkFailed, match="no_such_module"):
        speedups.probe("auto")
