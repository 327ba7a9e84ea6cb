"""Conditions on the content of messages: the options of `gantry search` and `gantry consume`, and their test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gantry_cli.errors import InvalidInput
from gantry_client import ReceivedMessage, UnreadableBody
from gantry_wire.search import MessageMatcher, SearchCriteria, SearchFault

F = TypeVar("F", bound=Callable[..., Any])


def content_options(command: F) -> F:
    """Add the options --text, --ignore-case and --json-path."""
    for option in (
        click.option(
            "--json-path",
            "json_paths",
            multiple=True,
            metavar="CONDITION",
            help="Only JSON bodies with, for example, '$.order.id = 17' (=, !=, contains, exists); repeatable.",
        ),
        click.option("--ignore-case", is_flag=True, help="Find --text in any case."),
        click.option("--text", metavar="TEXT", help="Only messages whose body contains this text."),
    ):
        command = option(command)
    return command


def make_matcher(criteria: SearchCriteria) -> MessageMatcher:
    """Return the matcher of the conditions. Raises InvalidInput that names the invalid one."""
    try:
        return MessageMatcher(criteria)
    except SearchFault as fault:
        raise InvalidInput(str(fault)) from fault


def accepts(matcher: MessageMatcher, message: ReceivedMessage) -> bool:
    """Return whether a received message meets all conditions."""

    def body() -> bytes | None:
        try:
            return message.body
        except UnreadableBody:
            matcher.unreadable += 1
            return None

    return matcher.matches(
        message.properties, message.store_timestamp_ms, lambda: message.offset_message_id, body
    )  # fmt: skip
