"""SQL92 filters compared with Apache's evaluator: the whole comparison with `--slow`, and tests of the comparison
itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import filter_judge, java
from gantry_interop.errors import InteropError
from gantry_interop.filter_cases import Case, corner_cases
from gantry_interop.filter_judge import Comparison

PAIRS = 100_000
SEED = 20_92


@pytest.mark.slow
@pytest.mark.needs_java
def test_both_evaluators_agree_on_a_hundred_thousand_pairs(tmp_path: Path) -> None:
    """RocketMQ's classes and ours: true, false, unknown, not evaluable, or an invalid filter."""
    found = filter_judge.compare(PAIRS, SEED, tmp_path)

    assert found.pairs >= PAIRS
    assert found.kept, "\n".join(found.lines())


@pytest.mark.slow
@pytest.mark.needs_java
def test_recorded_verdicts_are_those_of_the_evaluator(tmp_path: Path) -> None:
    """The verdicts that tests without Java use are still those of Apache's evaluator."""
    golden = filter_judge.read_golden()

    assert filter_judge.apache_verdicts([case for case, _ in golden], tmp_path) == [verdicts for _, verdicts in golden]


def test_different_verdict_is_a_finding() -> None:
    """The finding has the expression and the first message with a different verdict."""
    case = Case("a > 5", ({"a": "6"}, {"a": "5"}))
    comparison = Comparison()

    comparison.add([case, case, case], ["TF", "TT", "TF"], ["TF", "TF", "refused"])

    assert [(one["message"], one["theirs"], one["ours"]) for one in comparison.findings] == [
        ({"a": "5"}, "T", "F"),
        (None, "TF", "refused"),
    ]
    assert not comparison.kept
    assert "a > 5" in comparison.lines()[1]


def test_run_with_rare_verdicts_has_too_little_coverage() -> None:
    """Only refused expressions, or only true ones, do not test the evaluator."""
    case = Case("a > 5", ({"a": "6"},) * 10)
    comparison = Comparison()
    comparison.add([case], ["TTTTTTTTTT"], ["TTTTTTTTTT"])

    assert comparison.rare_kinds == ["F", "U", "X", "refused"]
    assert not comparison.kept


def test_incomplete_answers_of_the_evaluator_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java program that dies has confirmed nothing."""
    monkeypatch.setattr(java.Program, "command", lambda self, home, arguments=(): ["/bin/sh", "-c", "echo TF; exit 1"])

    with pytest.raises(InteropError, match="answered 1 of"):
        filter_judge.apache_verdicts(corner_cases(), tmp_path)
