"""The record of a shard in its Lease's annotations: it comes back as it went in, and counts its own changes."""

from __future__ import annotations

import json

import msgspec
import pytest

from gantry_spec.lease import Goal, LeaseRecord, Term, Voter
from gantry_spec.lease_annotations import RECORD, VERSION, BadRecord, lease_annotations, record_of

RECORD_OF_TWO = LeaseRecord(
    epoch=4_000,
    terms=(
        Term(epoch=2_000, master=1, identity="a", electable=(Voter(2, "b"), Voter(3, "c", coming="d", bar=77))),
        Term(epoch=3_000, master=2, identity="b", electable=(Voter(1, "a"),), acks_needed=1, end=900, loss=-1),
    ),
    goal=Goal(why="the master is gone", request="0=2", to=2, loss_accepted=None, may_move=True),
    duration_ms=9_000,
)


def test_a_record_comes_back_with_its_version() -> None:
    """All of it; the first one is version 1, and each that takes its place is one more."""
    first = record_of(lease_annotations(RECORD_OF_TWO))
    assert first == msgspec.structs.replace(RECORD_OF_TWO, version="1")

    second = record_of(lease_annotations(msgspec.structs.replace(first, epoch=5_000)))

    assert second is not None
    assert (second.version, second.epoch, second.terms) == ("2", 5_000, RECORD_OF_TWO.terms)


def test_the_expected_version_is_never_written_as_part_of_the_record() -> None:
    """It stands in an annotation of its own, so what a record says does not depend on what it replaced."""
    one, other = (lease_annotations(msgspec.structs.replace(RECORD_OF_TWO, version=text)) for text in ("7", "41"))

    assert one[RECORD] == other[RECORD]
    assert (one[VERSION], other[VERSION]) == ("8", "42")


def test_fields_have_the_names_that_earlier_versions_wrote() -> None:
    """A Lease outlives the operator that wrote it: whatever a field is called in the code, its written name stays."""
    written = json.loads(lease_annotations(RECORD_OF_TWO)[RECORD])

    assert written.keys() == {"epoch", "reigns", "goal", "duration_ms"}
    assert written["goal"].keys() == {"why", "wish", "to", "loss_accepted", "may_move"}
    assert json.loads(msgspec.json.encode(RECORD_OF_TWO)).keys() == {"version", *written}, "the same in a file"


def test_a_lease_of_somebody_else_has_no_record() -> None:
    """Annotations that are not ours are left alone."""
    assert record_of({}) is None
    assert record_of({"example.com/record": "{}"}) is None


@pytest.mark.parametrize(
    "annotations",
    [
        {RECORD: "{}", VERSION: "1"},
        {RECORD: '{"epoch":1}'},
        {VERSION: "1"},
        {RECORD: '{"epoch":1}', VERSION: "-1"},
        {RECORD: '{"epoch":1}', VERSION: "1" * 19},
        {RECORD: '{"epoch":1}', VERSION: "\u0661"},
        {RECORD: "[" * 100_000, VERSION: "1"},
        {RECORD: '{"epoch":"1"}', VERSION: "1"},
    ],
    ids=["no epoch", "no version", "no record", "negative", "long", "not ASCII", "deep", "text"],
)
def test_what_is_no_record_is_said_and_not_guessed(annotations: dict[str, str]) -> None:
    """Nobody renews, or decides by, something that only looks like one."""
    with pytest.raises(BadRecord):
        record_of(annotations)


def test_what_a_younger_version_says_more_is_ignored() -> None:
    """A renewal writes annotations back as they were, so nothing of it is lost."""
    text = lease_annotations(RECORD_OF_TWO)[RECORD]

    assert record_of({RECORD: '{"younger":1,' + text[1:], VERSION: "3"}) == msgspec.structs.replace(
        RECORD_OF_TWO, version="3"
    )
