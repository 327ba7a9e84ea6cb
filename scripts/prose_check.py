"""Refuse prose that a reader has to decode: `scripts/check` runs this over the tree, and over the subjects of commits.

    short docstring    a docstring of a module, class or function with fewer than five words
    form               a word or phrase of the private dialect that this code base had
    form in a name     a word of that dialect in an identifier
    dense prose        three or more vague words ("says", "goes", "thing") in one docstring, comment or paragraph
    long subject       a commit subject of more than 72 characters, in the range of commits that is checked

Prose is what people read: in Python docstrings, comments and string literals, and the whole text of Markdown and of the
other files (`PROSE_FILES`). The check is a floor and no substitute for reading. Exceptions are in
`scripts/prose_allowed.toml`, each with its reason; one that matches nothing is an error, and there are at most 20.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

DOCSTRING_WORDS_MIN: Final = 5
"""The fewest words of a docstring of a module, class or function."""

SUBJECT_CHARACTERS_MAX: Final = 72
VAGUE_WORDS_MAX: Final = 2
"""The most vague words in one text."""

EXCEPTIONS_MAX: Final = 20
"""The most exceptions that the file of exceptions may have."""

COMMITS_DEFAULT: Final = 30
"""How many of the last commits are checked where no range is given: a clone does not know what is new in it."""

FORMS: Final = (
    "nobody", "somebody", "whoever", "whatever", "whose turn", "whose it is", "goes on", "go on", "goes its way",
    "is told", "are told", "was told", "be told", "lets go", "once more", "as it were", "begins again", "knows of",
    "is no more", "said so", "what is what", "has it that", "may everything", "told apart from what",
)  # fmt: skip
"""Phrases that have an established word in their place (see the glossary in ARCHITECTURE.md)."""

NAME_PARTS: Final = frozenset(
    {
        "nobody", "somebody", "whoever", "crown", "reign", "teller", "looker", "hasty", "breathe", "bury", "elsewhere",
        "wholeness", "said", "heard", "told",
    }
)  # fmt: skip
"""Words that no identifier contains."""

VAGUE_WORDS: Final = (
    "says", "said", "say", "told", "tells", "hears", "heard", "looks", "looked", "stands", "stood", "goes", "asks",
    "anybody", "thing", "things",
)  # fmt: skip
"""Words that are allowed, but not several times in one text."""

PROSE_FILES: Final = (".md", ".yaml", ".yml", ".tpl", ".js", ".html", ".sh", ".go", ".java", ".txt")
"""The suffixes of files whose whole text is checked."""

GENERATED: Final = "_pb2.py"
"""The end of the names of files that a compiler has made."""
SKIPPED: Final = ("requirements/", "broker/tests/golden/", "CHANGELOG.md", "LICENSE", "scripts/prose_allowed.toml")
"""What is not our prose, or records the past."""

OWN: Final = ("scripts/prose_check.py", "broker/tests/house/test_house_prose.py")
"""These two name the forms in order to refuse them."""

_FORM: Final = re.compile(r"\b(" + "|".join(map(re.escape, FORMS)) + r")\b", re.IGNORECASE)
_VAGUE: Final = re.compile(r"\b(" + "|".join(VAGUE_WORDS) + r")\b", re.IGNORECASE)
_NAME_WORD: Final = re.compile(r"[A-Z]?[a-z]+")
_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


class Finding(NamedTuple):
    """One place that breaks a rule."""

    path: str
    line: int
    rule: str
    """The name of the rule, as in the list above."""

    text: str
    """The words that break the rule, or their beginning."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def findings_in(path: str, text: str) -> Iterator[Finding]:
    """Check one file, by its name."""
    yield from _python_findings(path, text) if path.endswith(".py") else _paragraph_findings(path, _paragraphs(text))


def _python_findings(path: str, text: str) -> Iterator[Finding]:
    yield from _short_docstrings(path, ast.parse(text))
    blocks: list[tuple[int, str]] = []
    last_comment_line = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            if line == last_comment_line + 1:
                blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]} {token.string}")
            else:
                blocks.append((line, token.string))
            last_comment_line = line
        elif token.type == tokenize.STRING:
            blocks += [(line + offset, part) for offset, part in _paragraphs(token.string, first=0)]
        elif token.type == tokenize.NAME:
            words = {word.lower() for word in _NAME_WORD.findall(token.string)}
            if bad := words & NAME_PARTS:
                yield Finding(path, line, "form in a name", f"{token.string} ({', '.join(sorted(bad))})")
    yield from _paragraph_findings(path, blocks)


def _short_docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None and len(docstring.split()) < DOCSTRING_WORDS_MIN:
                yield Finding(path, getattr(node, "lineno", 1), "short docstring", docstring)


def _paragraphs(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Split at empty lines, rows of a table and items of a list: (number of the first line, text)."""
    line = first
    for part in re.split(r"(\n\s*\n|\n(?=\s*(?:\||- |\* )))", text):
        if part.strip():
            yield line, part
        line += part.count("\n")


def _paragraph_findings(path: str, blocks: list[tuple[int, str]] | Iterator[tuple[int, str]]) -> Iterator[Finding]:
    for line, block in blocks:
        prose = _CODE.sub(lambda code: "\n" * code.group().count("\n"), block)
        for match in _FORM.finditer(prose):
            yield Finding(path, line + prose.count("\n", 0, match.start()), "form", match.group().lower())
        vague = _VAGUE.findall(prose)
        if len(vague) > VAGUE_WORDS_MAX:
            yield Finding(path, line, "dense prose", ", ".join(word.lower() for word in vague))


def subject_findings(subjects: Mapping[str, str]) -> Iterator[Finding]:
    """Check the subjects of commits, by their hashes."""
    for commit, subject in subjects.items():
        if len(subject) > SUBJECT_CHARACTERS_MAX:
            yield Finding(commit, 0, "long subject", f"{len(subject)} characters: {subject}")


class Exceptions:
    """Findings that are allowed, each with its reason: rows of `path`, `rule`, `text` (a part of it) and `why`.

    A path that ends in "/" covers the files below a folder, and an empty path covers all files.
    """

    def __init__(self, rows: list[dict[str, str]]) -> None:
        if len(rows) > EXCEPTIONS_MAX:
            raise ValueError(f"{len(rows)} exceptions, but at most {EXCEPTIONS_MAX} are allowed")
        for row in rows:
            if set(row) != {"path", "rule", "text", "why"} or not row["why"].strip():
                raise ValueError(f"an exception needs path, rule, text and why: {row}")
        self._rows = rows
        self._uses = [0] * len(rows)

    def allow(self, finding: Finding) -> bool:
        """Return whether an exception covers the finding, and remember that it was needed."""
        for number, row in enumerate(self._rows):
            if _covers(row["path"], finding.path) and finding.rule == row["rule"] and row["text"] in finding.text:
                self._uses[number] += 1
                return True
        return False

    def unused(self) -> list[str]:
        """Return the exceptions that covered no finding."""
        return [
            f"{row['path'] or 'all files'}: {row['text']}"
            for row, uses in zip(self._rows, self._uses, strict=True)
            if not uses
        ]


def _covers(allowed_path: str, path: str) -> bool:
    """Return whether the path of an exception covers a file."""
    is_folder = allowed_path.endswith("/") or not allowed_path
    return path.startswith(allowed_path) if is_folder else path == allowed_path


def tracked_files(root: Path) -> list[str]:
    """Return the files of the tree whose prose is checked."""
    listed = _git(root, "ls-files", "-co", "--exclude-standard").splitlines()
    return [
        name
        for name in listed
        if name.endswith((".py", *PROSE_FILES)) and not name.endswith(GENERATED)
        and not name.startswith(SKIPPED) and name not in OWN and (root / name).is_file()
    ]  # fmt: skip


def read_subjects(root: Path, commits: str) -> dict[str, str]:
    """Return the subjects of a range of commits, merges left out."""
    words = ["--max-count", commits] if commits.isdigit() else [commits]
    lines = _git(root, "log", "--no-merges", "--format=%h %s", *words).splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Check the tree, print what was found and the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", default=str(COMMITS_DEFAULT), help="a range A..B, or how many of the last commits")
    parser.add_argument("--figures", action="store_true", help="print only how much of each there is, by folder")
    parser.add_argument("paths", nargs="*", help="only files below these folders")
    choice = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    allowed = Exceptions(tomllib.loads((root / "scripts" / "prose_allowed.toml").read_text())["allowed"])
    found: list[Finding] = []
    for name in tracked_files(root):
        if not choice.paths or name.startswith(tuple(choice.paths)):
            found += findings_in(name, (root / name).read_text(encoding="utf-8"))
    if not choice.paths:
        found += subject_findings(read_subjects(root, choice.commits))
    found = [finding for finding in found if not allowed.allow(finding)]
    lines = list(map(str, found))
    if choice.figures:
        counts = Counter((finding.rule, "/".join(finding.path.split("/")[:3])) for finding in found)
        lines = [f"{count:6} {rule:16} {folder}" for (rule, folder), count in sorted(counts.items())]
    unused = [f"scripts/prose_allowed.toml: not needed any more: {one}" for one in allowed.unused() if not choice.paths]
    totals = Counter(finding.rule for finding in found)
    summary = ", ".join(f"{count} x {rule}" for rule, count in sorted(totals.items())) or "nothing found"
    print("\n".join((*lines, *unused, f"prose: {summary}")))
    return 1 if found or unused else 0


if __name__ == "__main__":
    sys.exit(main())
