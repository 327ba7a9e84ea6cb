"""A person's requests in annotations are parsed exactly, or refused with the expected format."""

from __future__ import annotations

import pytest

from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import (
    ACCEPT_LOSS,
    BACKUP,
    FENCE,
    HIBERNATE,
    PAUSED,
    PROMOTE,
    REPLACE_DISK,
    RESTORE,
    GroupRequests,
    RequestedPromotion,
    parse_requests,
    parse_states,
    remove_entry,
)


def test_without_annotations_nothing_is_requested() -> None:
    """Annotations with other names are ignored."""
    assert parse_requests({"example.org/paused": "true"}) == GroupRequests()


def test_every_request_is_parsed() -> None:
    """A request has a shard, a member and the loss that it accepts."""
    asked = parse_requests({PAUSED: "true", PROMOTE: "0=2, 3@tuesday", ACCEPT_LOSS: "64Mi", REPLACE_DISK: "0/2,1/3"})

    assert asked.is_paused
    assert asked.promotions == (
        RequestedPromotion("0=2", 0, 2, 64 << 20),
        RequestedPromotion("3@tuesday", 3, 0, 64 << 20),
    )
    assert asked.lost_disks == ((0, 2), (1, 3))


def test_states_are_parsed_with_requests() -> None:
    """Each shard is listed once, in ascending order."""
    asked = parse_requests({FENCE: "2, 0,2", HIBERNATE: "true", RESTORE: "1"})

    assert (asked.fenced_shards, asked.is_hibernated, asked.restored_shards) == ((0, 2), True, (1,))


def test_a_typo_lifts_no_fence_and_wakes_no_group() -> None:
    """Valid states hold although other annotations are invalid; a misspelled hibernation has no effect."""
    asked = parse_states({FENCE: "0,x", HIBERNATE: "true", PROMOTE: "zero"})
    assert (asked.fenced_shards, asked.is_hibernated, asked.promotions) == ((0,), True, ())

    assert parse_states({HIBERNATE: "yes", PAUSED: "yes"}) == GroupRequests(is_paused=True)


def test_blanks_around_entries_are_ignored() -> None:
    """They are spaces, tabs and ends of lines, which the API server ignores, too."""
    asked = parse_requests({FENCE: " 0\t,\r\n2 ,,", PROMOTE: ",", ACCEPT_LOSS: " 1Ki "})

    assert (asked.fenced_shards, asked.promotions) == ((0, 2), ())


def test_any_loss_is_accepted_only_with_the_word_any() -> None:
    """Without the annotation no loss is accepted."""
    assert parse_requests({PROMOTE: "0", ACCEPT_LOSS: "any"}).promotions[0].loss_accepted is None
    assert parse_requests({PROMOTE: "0"}).promotions[0].loss_accepted == 0


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({PAUSED: "yes"}, "neither"),
        ({PROMOTE: "orders-0-slave-1"}, 'write "0=2" for member 2 of shard 0'),
        ({PROMOTE: "0=1,0=2"}, "only one promotion"),
        ({ACCEPT_LOSS: "everything"}, '64Mi, 10Gi or 4096, or "any"'),
        ({REPLACE_DISK: "2"}, 'write "0/2"'),
        ({FENCE: "0/2"}, 'write "0,2" for the shards 0 and 2'),
        ({RESTORE: "all"}, "is not a shard"),
        ({HIBERNATE: "yes"}, "neither"),
        ({BACKUP: "Before"}, "up to 40 lowercase letters"),
        ({FENCE: "0,\u20031"}, "is not a shard"),
        ({FENCE: "\u0660"}, "is not a shard"),
        ({FENCE: "0," * 2049}, "at most 4096 characters"),
    ],
    ids=[
        "paused",
        "promote",
        "twice",
        "loss",
        "disk",
        "fence",
        "restore",
        "hibernate",
        "backup",
        "blank",
        "digit",
        "long",
    ],
)
def test_an_invalid_annotation_is_refused(annotations: dict[str, str], text: str) -> None:
    """The error names the annotation and the expected format."""
    with pytest.raises(ManifestError) as caught:
        parse_requests(annotations)

    assert text in str(caught.value)
    assert str(caught.value).startswith("metadata.annotations[gantry.dev/")


def test_a_finished_request_is_removed_and_others_stay() -> None:
    """A request is identified by its whole text."""
    assert remove_entry("0=2, 1@again", "0=2") == "1@again"
    assert remove_entry("0=2", "0=2") == ""
