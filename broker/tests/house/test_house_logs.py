"""The log catalogue names every warning and error; an event without an explanation fails here."""

from __future__ import annotations

import pytest
from log_catalogue import CatalogueError, LogEvent, disagreements, events_in, events_of, explanations_of

from gantry_testing.tree import ROOT

EXPLAINED = {"replica fell behind": {"meaning": "A slave is slow.", "action": "Check its disk."}}


def texts(source: str) -> list[tuple[str, str]]:
    """Return level and text of the events of a module."""
    return sorted((event.level, event.text) for event in events_in("gantry_broker.part", source))


def test_every_event_of_the_source_is_explained() -> None:
    """Each warning and error has a meaning and an action in docs/logs.toml, and no explanation is left over."""
    assert disagreements(events_of(ROOT), explanations_of(ROOT)) == []


def test_missing_superfluous_and_incomplete_explanations_are_named() -> None:
    """The check of the catalogue can fail, for each of its three reasons."""
    event = LogEvent("fsync failed", "error", "gantry_broker.store")

    assert disagreements([event], EXPLAINED) == [
        "no explanation of the log event 'fsync failed'",
        "no log event has the text 'replica fell behind'",
    ]
    assert disagreements([event], {"fsync failed": {"meaning": "The disk is broken.", "action": " "}}) == [
        "the explanation of 'fsync failed' needs a meaning and an action"
    ]


def test_events_are_found_in_every_form_of_a_call() -> None:
    """Levels as methods and as arguments, texts as literals, choices, variables, constants and parameters."""
    source = """
FULL = "disk is full"
def one(self):
    log.warning("a")
    self._log.error(FULL)
    log.exception("b" if self.x else "c")
    text = "d"
    log.log(logging.WARNING if self.x else logging.INFO, text)
    self._limited.write(logging.ERROR, "e", {})
    log.info("quiet")
    log.log(logging.DEBUG if self.x else logging.INFO, "quiet too")
    self.report("f", 1)
def report(self, what, number):
    log.error(what, extra={"number": number})
"""
    assert texts(source) == [
        ("error", "b"), ("error", "c"), ("error", "disk is full"), ("error", "e"), ("error", "f"),
        ("warning", "a"), ("warning", "d"),
    ]  # fmt: skip


def test_text_that_is_no_literal_is_refused() -> None:
    """A text that is built at run time can be neither searched nor explained."""
    with pytest.raises(CatalogueError, match=r"gantry_broker\.part:1: the text of a log event must be a literal"):
        texts('log.error(f"{count} failures")')
