"""The values that may differ between two equivalent servers, and how they are removed before a comparison.

First, facts: addresses, folders and ids of a peer are known, so exactly those texts are replaced by their names. Then
the quirks of the step are removed. Then moments: a date or a count of milliseconds is replaced when it lies within the
run, so that a zero, or a time of another year, stays visible. Then message ids, checksums of records, hints for further
reading, and addresses of clients. Last, the masks of the step: each replaces one value that
follows known words by its name and is as narrow as its pattern. Java stack traces are removed; their error message
stays. Of a refusal the code is compared, but not the text.

A mask demands the form of the value: where one peer prints a number and the other nothing, that is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

STACK_LINE: Final = re.compile(r"^(\s+at [\w.$/]+[.<].*|\s*\.\.\. \d+ (more|common frames omitted))$")
DATE: Final = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)[ #T](\d\d):(\d\d):(\d\d)(?:[:,.]\d{3})?\b")
COMPACT_DATE: Final = re.compile(r"\b(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)\d{3}\b")
MILLISECONDS: Final = re.compile(r"(?<![\w.])1\d{12}(?!\w)")
HEX_ID: Final = re.compile(r"\b(?:[0-9A-F]{56}|[0-9A-F]{32})(?=\b|SendResult)")
"""A message id: of the client that made it (56 digits if that has an IPv6 address), or of its place in the log."""
SEAL: Final = re.compile(r"(?<=__CRC32#=)\d{10}\b")
"""The checksum of a record, which covers the time and the server's port."""
REFUSAL: Final = re.compile(r"(\bCODE: \d+ +DESC: )\S.*?(?= BROKER: |$)", re.MULTILINE)
"""A refusal has a code, which programs act on, and a text for people, which each server words itself."""
HELP_HINT: Final = re.compile(
    r"\n?(?:See (?:https?://\S+) for further details\.|For more information, please visit the url, \S+)"
)
"""A reference for further reading, which the client adds to an error unless the server has done so."""
CLIENT_ADDRESS: Final = re.compile(r"(?<![\d.])127\.0\.0\.1:(\d{4,5})\b")
SLACK_MS: Final = 120_000


@dataclass(frozen=True)
class Mask:
    """One value that may differ: the group `value` of the pattern is replaced by the name."""

    name: str
    pattern: str
    why: str = ""
    """The reason, where the name is not sufficient."""

    def __post_init__(self) -> None:
        assert "(?P<value>" in self.pattern, f"{self.name} has no group named value"

    def without_values(self, text: str) -> str:
        """Return the text without these values."""
        return re.sub(self.pattern, self._replace, text, flags=re.MULTILINE)

    def _replace(self, match: re.Match[str]) -> str:
        start, end = match.start("value") - match.start(), match.end("value") - match.start()
        return f"{match[0][:start]}<{self.name}>{match[0][end:]}"


@dataclass(frozen=True)
class Quirk:
    """Output of Apache's servers, or of the tool itself, that is left out of the comparison, with the reason."""

    pattern: str
    why: str

    def without_values(self, text: str) -> str:
        """Return the text without the quirk."""
        return re.sub(self.pattern, "", text, flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class CommonRows:
    """Rows that each server has partly for itself: rows that both have are compared, and there must be enough of
    them."""

    key: str
    """A pattern whose first group names a row."""
    rows_min: int
    """A side with fewer compared rows has an error line instead of a silent success."""
    why: str
    """The reason why each server has some rows of its own."""

    def of(self, one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
        """Return the rows of one side that have no key, or one that the other has too; add an error line if too few."""
        keys = {found[1] for row in other if (found := re.match(self.key, row))}
        rows = [row for row in one if not (found := re.match(self.key, row)) or found[1] in keys]
        few = [] if len(rows) >= self.rows_min else [f"only {len(rows)} rows that both have"]
        return (*rows, *few)


@dataclass(frozen=True)
class Window:
    """The time of a run, in milliseconds since 1970."""

    start_ms: int
    end_ms: int

    def __contains__(self, moment_ms: int) -> bool:
        return self.start_ms - SLACK_MS <= moment_ms <= self.end_ms + SLACK_MS


def normalize(
    text: str, facts: Mapping[str, str], window: Window, masks: Sequence[Mask] = (), quirks: Sequence[Quirk] = ()
) -> list[str]:
    """Return the lines of an output without the values that may differ."""
    for name, value in sorted(facts.items(), key=lambda fact: -len(fact[1])):
        text = re.sub(rf"(?<![\w.]){re.escape(value)}(?!\w)", f"<{name}>", text)
    for quirk in quirks:
        text = quirk.without_values(text)
    text = DATE.sub(lambda found: _moment(found, window), text)
    text = COMPACT_DATE.sub(lambda found: _moment(found, window), text)
    text = MILLISECONDS.sub(lambda found: "<ms>" if int(found[0]) in window else found[0], text)
    text = HEX_ID.sub("<id>", text)
    text = SEAL.sub("<crc>", text)
    text = REFUSAL.sub(r"\1<words>", HELP_HINT.sub("", text))
    text = CLIENT_ADDRESS.sub("<client address>", text)
    for mask in masks:
        text = mask.without_values(text)
    lines = (" ".join(line.split()) for line in text.splitlines() if not STACK_LINE.match(line))
    return [line for line in lines if line]


def _moment(found: re.Match[str], window: Window) -> str:
    try:
        moment = datetime(*(int(part) for part in found.groups()[:6]), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return found[0]
    return "<time>" if int(moment.timestamp() * 1000) in window else found[0]
