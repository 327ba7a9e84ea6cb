"""The prose check finds what it forbids, and nothing else; the tree itself passes it."""

from __future__ import annotations

from pathlib import Path

import prose_check
import pytest
from prose_check import Exceptions, Finding, findings_in, subject_findings

PLAIN = '''"""Wait until enough slaves have the bytes of a send."""


def wait_for_acks(offset: int) -> None:
    """Return when `offset` is acknowledged by enough slaves."""
'''


def rules(path: str, text: str) -> list[str]:
    """Return the rules that a file breaks."""
    return [finding.rule for finding in findings_in(path, text)]


def test_plain_prose_passes() -> None:
    """Ordinary technical English breaks no rule."""
    assert rules("broker/plain.py", PLAIN) == []


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("Return when `offset` is acknowledged by enough slaves.", "Who counts.", "short docstring"),
        ("Return when `offset`", "Return when whoever asked", "form"),
        ("wait_for_acks", "nobody_waits", "form in a name"),
        ("Return when `offset`", "It says what it heard when it looked, and `offset`", "dense prose"),
    ],
)
def test_planted_dialect_is_found(old: str, new: str, rule: str) -> None:
    """Each rule finds the violation that is planted into plain prose."""
    assert old in PLAIN
    assert rules("broker/plain.py", PLAIN.replace(old, new)) == [rule]


def test_comments_strings_and_pages_are_prose() -> None:
    """The forms are found in comments, in string literals and on pages, with their lines."""
    assert findings_of("a.py", "# It goes on\n# with nobody\n") == [(1, "goes on"), (1, "nobody")]
    assert findings_of("a.py", 'x = "it is told"\n') == [(1, "is told")]
    assert findings_of("a.md", "# Title\n\nOne line.\nAs it were.\n") == [(4, "as it were")]


def findings_of(path: str, text: str) -> list[tuple[int, str]]:
    """Return line and text of what a file breaks."""
    return [(finding.line, finding.text) for finding in findings_in(path, text)]


def test_code_on_pages_is_no_prose() -> None:
    """Code between backquotes is quoted: a command or an API may keep its name."""
    assert rules("a.md", "Run `gantry whoever`:\n\n```\nnobody\n```\n") == []


def test_long_subject_is_found() -> None:
    """A commit subject of 73 characters is one too many."""
    assert [finding.rule for finding in subject_findings({"abc": "x" * 73})] == ["long subject"]
    assert list(subject_findings({"abc": "x" * 72})) == []


def test_exception_covers_its_finding_only_and_must_be_needed() -> None:
    """An exception has a reason, covers the file and rule that it names, and is reported when it covers nothing."""
    row = {"path": "a.py", "rule": "form", "text": "nobody", "why": "the user id 65534 has this name"}
    allowed = Exceptions([row, row | {"path": "b.py"}])

    assert allowed.allow(Finding("a.py", 3, "form", "nobody"))
    assert not allowed.allow(Finding("a.py", 3, "form", "whoever"))
    assert allowed.unused() == ["b.py: nobody"]


@pytest.mark.parametrize(
    ("path", "covered"),
    [("a/b.py", {"a/b.py"}), ("a/", {"a/b.py", "a/c/d.py"}), ("", {"a/b.py", "a/c/d.py", "ab.py"}), ("a", set())],
    ids=["file", "folder", "all files", "prefix"],
)
def test_exception_covers_a_file_a_folder_or_all_files(path: str, covered: set[str]) -> None:
    """A path with a slash at its end covers a folder, an empty path covers all files, and any other path one file."""
    allowed = Exceptions([{"path": path, "rule": "form", "text": "nobody", "why": "a reason"}])

    files = ("a/b.py", "a/c/d.py", "ab.py")
    assert {file for file in files if allowed.allow(Finding(file, 1, "form", "nobody"))} == covered
    assert bool(allowed.unused()) == (not covered)


def test_exceptions_are_few_and_have_reasons() -> None:
    """Neither an exception without a reason is accepted nor a twenty-first one."""
    row = {"path": "a.py", "rule": "form", "text": "nobody", "why": "a reason"}
    with pytest.raises(ValueError, match="needs path, rule, text and why"):
        Exceptions([row | {"why": " "}])
    with pytest.raises(ValueError, match="at most 20"):
        Exceptions([row] * 21)


def test_check_fails_for_a_tree_with_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 1 and names file, line and rule; without the planted word it exits with 0."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "prose_allowed.toml").write_text("allowed = []\n")
    monkeypatch.setattr(prose_check, "__file__", str(tmp_path / "scripts" / "prose_check.py"))
    monkeypatch.setattr(prose_check, "tracked_files", lambda _: ["page.md"])
    monkeypatch.setattr(prose_check, "read_subjects", lambda *_: {})
    monkeypatch.setattr("sys.argv", ["prose_check.py"])

    (tmp_path / "page.md").write_text("Nobody reads this.\n")
    assert prose_check.main() == 1
    assert "page.md:1: form: nobody" in capsys.readouterr().out

    (tmp_path / "page.md").write_text("No consumer reads this.\n")
    assert prose_check.main() == 0
    assert capsys.readouterr().out == "prose: nothing found\n"
