"""The record of a shard in the annotations of its Lease, with its version counter."""

from __future__ import annotations

import json

import msgspec
import pytest

from gantry_spec.decide.election import goal_for
from gantry_spec.lease import Goal, LeaseRecord, Term, Voter
from gantry_spec.lease_annotations import RECORD, VERSION, InvalidLeaseRecord, lease_annotations, record_of
from gantry_spec.manifest.annotations import ACCEPT_LOSS, PROMOTE, parse_requests
from gantry_spec.manifest.quantities import parse_duration, parse_size

RECORD_OF_TWO = LeaseRecord(
    epoch=4_000,
    terms=(
        Term(epoch=2_000, master=1, identity="a", electable=(Voter(2, "b"), Voter(3, "c", coming="d", bar=77))),
        Term(epoch=3_000, master=2, identity="b", electable=(Voter(1, "a"),), acks_needed=1, end=900, loss=-1),
    ),
    goal=Goal(why="the master is gone", promotion_request="0=2", to=2, loss_accepted=None, may_move=True),
    duration_ms=9_000,
)


def test_a_record_is_read_with_its_version() -> None:
    """The first record has version 1, and each replacement adds one."""
    first = record_of(lease_annotations(RECORD_OF_TWO))
    assert first == msgspec.structs.replace(RECORD_OF_TWO, version="1")

    second = record_of(lease_annotations(msgspec.structs.replace(first, epoch=5_000)))

    assert second is not None
    assert (second.version, second.epoch, second.terms) == ("2", 5_000, RECORD_OF_TWO.terms)


def test_the_expected_version_is_never_written_as_part_of_the_record() -> None:
    """The version has an annotation of its own, so a record does not depend on the one that it replaced."""
    one, other = (lease_annotations(msgspec.structs.replace(RECORD_OF_TWO, version=text)) for text in ("7", "41"))

    assert one[RECORD] == other[RECORD]
    assert (one[VERSION], other[VERSION]) == ("8", "42")


def test_fields_have_stable_names() -> None:
    """A Lease outlives the operator that wrote it, and sidecars of other versions read it."""
    written = json.loads(lease_annotations(RECORD_OF_TWO)[RECORD])

    assert written.keys() == {"epoch", "terms", "goal", "duration_ms"}
    assert written["goal"].keys() == {"why", "promotion_request", "to", "loss_accepted", "may_move"}
    assert json.loads(msgspec.json.encode(RECORD_OF_TWO)).keys() == {"version", *written}, (
        "expected the same names in the local Lease file"
    )


def test_a_record_without_the_field_for_an_unknown_loss_is_read() -> None:
    """An earlier version has written it: then nothing is known to be lost. Its readers ignore the field."""
    written = lease_annotations(RECORD_OF_TWO)
    former = written[RECORD].replace(',"is_loss_unknown":false', "")
    assert former != written[RECORD]

    assert record_of(written | {RECORD: former}) == record_of(written)


def test_a_record_of_an_earlier_version_is_read() -> None:
    """It names the terms `reigns` and the promotion request `wish`; the next replacement has the present names."""
    written = lease_annotations(RECORD_OF_TWO)
    former = written[RECORD].replace('"terms"', '"reigns"').replace('"promotion_request"', '"wish"')

    record = record_of({RECORD: former, VERSION: "1"})

    assert record == msgspec.structs.replace(RECORD_OF_TWO, version="1")
    assert lease_annotations(record)[RECORD] == written[RECORD] != former


@pytest.mark.parametrize(("text", "loss"), [(None, 0), ("64Mi", 64 << 20), ("any", None)], ids=["none", "size", "any"])
def test_a_requested_promotion_can_be_recorded(text: str | None, loss: int | None) -> None:
    """The accepted loss of an annotation is recorded as a number of bytes, also where the request accepts none."""
    annotations = {PROMOTE: "0=2"} | ({} if text is None else {ACCEPT_LOSS: text})
    request = parse_requests(annotations).request(0)
    assert request is not None

    record = msgspec.structs.replace(RECORD_OF_TWO, goal=goal_for(request, "a promotion was requested"))

    assert type(request.loss_accepted) in (int, type(None)), "expected a type that every encoder knows"
    read = record_of(lease_annotations(record))
    assert read is not None and read.goal is not None
    assert (read.goal.promotion_request, read.goal.to, read.goal.loss_accepted) == ("0=2", 2, loss)


def test_a_record_with_sizes_of_a_manifest_can_be_written() -> None:
    """Sizes and durations are written as numbers, wherever a record contains one."""
    goal = Goal(why="a promotion was requested", loss_accepted=parse_size("1Mi"))
    record = msgspec.structs.replace(RECORD_OF_TWO, goal=goal, duration_ms=parse_duration("9s"))

    read = record_of(lease_annotations(record))

    assert read is not None and read.goal is not None
    assert (read.goal.loss_accepted, read.duration_ms) == (1 << 20, 9_000)


def test_a_foreign_lease_has_no_record() -> None:
    """Annotations of other programs are ignored."""
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
def test_an_invalid_record_is_an_error(annotations: dict[str, str]) -> None:
    """An invalid record is neither renewed nor used for decisions."""
    with pytest.raises(InvalidLeaseRecord):
        record_of(annotations)


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    """A renewal keeps the annotations unchanged, so nothing is lost."""
    text = lease_annotations(RECORD_OF_TWO)[RECORD]

    assert record_of({RECORD: '{"younger":1,' + text[1:], VERSION: "3"}) == msgspec.structs.replace(
        RECORD_OF_TWO, version="3"
    )
