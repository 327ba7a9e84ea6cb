"""SQL92 filters beside Apache's evaluator: the whole comparison with `--slow`, and the judge itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_interop import filter_judge, java
from gantry_interop.errors import InteropError
from gantry_interop.filter_cases import Case, corners
from gantry_interop.filter_judge import Comparison

PAIRS = 100_000
SEED = 20_92


@pytest.mark.slow
@pytest.mark.needs_java
def test_both_evaluators_say_the_same_of_a_hundred_thousand_pairs(tmp_path: Path) -> None:
    """RocketMQ 5.3.3's classes and ours: true, false, unknown, cannot be judged, or no filter at all."""
    found = filter_judge.compare(PAIRS, SEED, tmp_path)

    assert found.pairs >= PAIRS
    assert found.kept, "\n".join(found.lines())


@pytest.mark.slow
@pytest.mark.needs_java
def test_frozen_verdicts_are_those_of_the_evaluator(tmp_path: Path) -> None:
    """What tests without Java believe was said by Apache's evaluator, and still is."""
    golden = filter_judge.read_golden()

    assert filter_judge.their_verdicts([case for case, _ in golden], tmp_path) == [verdicts for _, verdicts in golden]


def test_another_verdict_is_a_finding() -> None:
    """With the expression and the first message of which something else is said."""
    case = Case("a > 5", ({"a": "6"}, {"a": "5"}))
    comparison = Comparison()

    comparison.add([case, case, case], ["TF", "TT", "TF"], ["TF", "TF", "refused"])

    assert [(one["message"], one["theirs"], one["ours"]) for one in comparison.findings] == [
        ({"a": "5"}, "T", "F"),
        (None, "TF", "refused"),
    ]
    assert not comparison.kept
    assert "a > 5" in comparison.lines()[1]


def test_a_run_in_which_hardly_anything_was_judged_proves_too_little() -> None:
    """Only refused expressions, or only true ones, say nothing about the evaluator."""
    case = Case("a > 5", ({"a": "6"},) * 10)
    comparison = Comparison()
    comparison.add([case], ["TTTTTTTTTT"], ["TTTTTTTTTT"])

    assert comparison.proves_too_little == ["F", "U", "X", "refused"]
    assert not comparison.kept


def test_a_judge_that_answers_too_little_is_no_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java program that dies has agreed to nothing."""
    monkeypatch.setattr(java.Program, "command", lambda self, home, arguments=(): ["/bin/sh", "-c", "echo TF; exit 1"])

    with pytest.raises(InteropError, match="answered 1 of"):
        filter_judge.their_verdicts(corners(), tmp_path)
