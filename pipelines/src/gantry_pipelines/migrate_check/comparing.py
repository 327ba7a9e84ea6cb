"""What differs between two clusters, in words and kinds. Pure.

Before the switch both must have the same. After it (`is_over`) ours has gone on: it may have more messages behind the
end of theirs, and groups may have come further there. Less than theirs, or something else, is a finding at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, final

from gantry_pipelines.migrate_check.facts import WHOLE, ClusterFacts, Match
from gantry_pipelines.migrate_check.fingerprints import SLICE

SHOWN_MAX: Final = 40


class Kind(StrEnum):
    """Of a difference."""

    TOPIC_MISSING = "topic-missing"
    TOPIC_EXTRA = "topic-extra"
    QUEUES = "queues"
    """Another number of queues, or on other brokers; the topic is then compared as a whole."""
    FEWER = "fewer-messages"
    """Ours ends before theirs."""
    MORE = "more-messages"
    EXPIRED = "begins-later"
    """Ours begins behind theirs."""
    CONTENT = "content"
    """The same places, other messages."""
    GROUP_BEHIND = "group-behind"
    """A group would read again at ours what it has read."""
    GROUP_AHEAD = "group-ahead"
    """A group would skip at ours what it has not read."""


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """One."""

    kind: Kind
    what: str
    """A topic, or a group in a topic."""
    text: str
    is_note: bool = False
    """Whether it is as it should be after a switch, or was right to happen."""


@final
@dataclass(frozen=True, slots=True)
class CheckResult:
    """All of them."""

    topics: int
    messages: int
    """Whose content was compared."""
    groups: int
    differences: tuple[Difference, ...]

    @property
    def findings(self) -> list[Difference]:
        """Without what is only worth a note."""
        return [one for one in self.differences if not one.is_note]

    def text(self) -> str:
        """The report."""
        return "\n".join(self._lines()) + "\n"

    def document(self) -> dict[str, Any]:
        """For programs."""
        findings = self.findings
        return {
            "verdict": "Differs" if findings else "Same",
            "topics": self.topics,
            "messages": self.messages,
            "groups": self.groups,
            "byKind": dict(sorted(Counter(one.kind.value for one in findings).items())),
            "first": [f"{one.kind.value}: {one.what}: {one.text}" for one in findings[:20]],
        }

    def _lines(self) -> Iterator[str]:
        yield f"{self.topics} topics, {self.messages} messages by content, {self.groups} groups"
        shown = sorted(self.differences, key=lambda one: one.is_note)
        for one in shown[:SHOWN_MAX]:
            yield f"  {'note' if one.is_note else 'DIFFERS'} {one.kind.value}: {one.what}: {one.text}"
        if len(shown) > SHOWN_MAX:
            yield f"  and {len(shown) - SHOWN_MAX} more"
        count = len(self.findings)
        yield "the same" if not count else f"{count} difference{'s' if count > 1 else ''}"


def of_topics(theirs: ClusterFacts, ours: ClusterFacts, *, is_over: bool) -> Iterator[Difference]:
    """Topics that one side lacks."""
    for topic in sorted(theirs.topics.keys() - ours.topics.keys()):
        yield Difference(
            Kind.TOPIC_MISSING, topic, f"ours does not have it; theirs has {theirs.messages(topic)} messages"
        )
    for topic in sorted(ours.topics.keys() - theirs.topics.keys()):
        yield Difference(Kind.TOPIC_EXTRA, topic, f"only ours has it, with {ours.messages(topic)} messages", is_over)


def of_match(match: Match, theirs: ClusterFacts, ours: ClusterFacts, *, is_over: bool) -> Iterator[Difference]:
    """Queues and how far they go."""
    topic = match.topic
    if match.is_whole:
        left, right = theirs.topics[topic], ours.topics[topic]
        yield Difference(Kind.QUEUES, topic, f"theirs has {_queues(left)}, ours {_queues(right)}: compared as a whole")
        return
    for pair in match.pairs:
        one, two = theirs.bounds[pair.theirs], ours.bounds[pair.ours]
        name = str(pair.ours)
        if two.end < one.end:
            yield Difference(Kind.FEWER, name, f"ours ends at {two.end}, theirs at {one.end}: {one.end - two.end} less")
        elif two.end > one.end:
            text = f"ours ends at {two.end}, theirs at {one.end}: {two.end - one.end} more"
            yield Difference(Kind.MORE, name, text, is_over)
        if two.begin > one.begin:
            yield Difference(Kind.EXPIRED, name, f"ours begins at {two.begin}, theirs at {one.begin}")


def of_content(rows: Iterable[Mapping[str, Any]]) -> Iterator[Difference]:
    """Out of `fingerprints.differences`."""
    for row in sorted(rows, key=lambda one: (one["topic"], one["broker"], one["queue"], one["slice"])):
        counts = f"{row['theirs']} messages of theirs, {row['ours']} of ours"
        if row["broker"] == WHOLE:
            yield Difference(Kind.CONTENT, row["topic"], f"not the same messages: {counts}")
        else:
            place = f"{row['topic']}/{row['broker']}/{row['queue']}"
            text = f"not the same messages in [{row['slice']}, {row['slice'] + SLICE}): {counts}"
            yield Difference(Kind.CONTENT, place, text)


def of_groups(
    matches: Iterable[Match], theirs: ClusterFacts, ours: ClusterFacts, *, is_over: bool
) -> Iterator[Difference]:
    """Offsets of groups, queue by queue; of a topic as a whole by what is left to read."""
    for match in matches:
        for group in sorted(theirs.groups):
            left, right = theirs.groups[group], ours.groups.get(group, {})
            if match.is_whole:
                yield from _rest(group, match.topic, theirs, ours, is_over=is_over)
                continue
            for pair in match.pairs:
                offset = left.get(pair.theirs)
                if offset is None or (offset <= ours.bounds[pair.ours].begin and pair.ours not in right):
                    continue
                yield from _offset(group, str(pair.ours), offset, right.get(pair.ours), is_over=is_over)


def _offset(group: str, place: str, theirs: int, ours: int | None, *, is_over: bool) -> Iterator[Difference]:
    what = f"{group} in {place}"
    if ours is None:
        yield Difference(Kind.GROUP_BEHIND, what, f"it has no offset at ours, and {theirs} at theirs")
    elif ours < theirs:
        yield Difference(Kind.GROUP_BEHIND, what, f"{ours} at ours, {theirs} at theirs: {theirs - ours} again")
    elif ours > theirs:
        text = f"{ours} at ours, {theirs} at theirs: {ours - theirs} skipped"
        yield Difference(Kind.GROUP_AHEAD, what, "it has gone on" if is_over else text, is_over)


def _rest(group: str, topic: str, theirs: ClusterFacts, ours: ClusterFacts, *, is_over: bool) -> Iterator[Difference]:
    left, right = _left_to_read(group, topic, theirs), _left_to_read(group, topic, ours)
    if left is None:
        return
    what = f"{group} in {topic}"
    if right is None:
        yield Difference(Kind.GROUP_BEHIND, what, f"it has no offsets at ours, and {left} to read at theirs")
    elif right > left and not is_over:
        yield Difference(Kind.GROUP_BEHIND, what, f"{right} messages to read at ours, {left} at theirs")
    elif right < left:
        yield Difference(Kind.GROUP_AHEAD, what, f"{right} messages to read at ours, {left} at theirs", is_over)


def _left_to_read(group: str, topic: str, facts: ClusterFacts) -> int | None:
    offsets = {queue: offset for queue, offset in facts.groups.get(group, {}).items() if queue.topic == topic}
    if not offsets:
        return None
    return sum(
        max(one.end - max(offsets.get(queue, one.begin), one.begin), 0)
        for queue, one in facts.bounds.items() if queue.topic == topic
    )  # fmt: skip


def _queues(brokers: Mapping[str, list[int]]) -> str:
    return ", ".join(f"{len(numbers)} on {name}" for name, numbers in sorted(brokers.items())) or "none"
