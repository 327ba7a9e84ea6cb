"""Shell completion of topic and group names, which are requested from the name server and the masters.

Completion never fails: an error would appear in the middle of a command line that is being typed. It never takes long:
after `ANSWER_TIMEOUT_S` no names are offered, and after `PROCESS_TIMEOUT_S` the process exits even if a thread is
blocked (resolving an unknown host name can block a thread for minutes).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from click.shell_completion import CompletionItem

from gantry_cli.account import client_settings
from gantry_cli.errors import CliError
from gantry_client import Admin, ClientError

ANSWER_TIMEOUT_S: Final = 0.5
PROCESS_TIMEOUT_S: Final = 2.0
OFFERED_MAX: Final = 500
"""The most names that are offered at a time."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a topic; for `shell_complete=` of an option or argument."""

    async def query(admin: Admin) -> Sequence[str]:
        return await admin.topics.all()

    return _candidates(context, query, incomplete)


def complete_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a consumer group; for `shell_complete=` of an option or argument."""

    async def query(admin: Admin) -> Sequence[str]:
        return sorted(await admin.groups.all())

    return _candidates(context, query, incomplete)


def _candidates(
    context: click.Context, query: Callable[[Admin], Awaitable[Sequence[str]]], incomplete: str
) -> list[CompletionItem]:
    name_server = context.params.get("name_server")
    if not isinstance(name_server, str):
        return []  # the address that was typed is invalid

    async def names() -> Sequence[str]:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            async with Admin(name_server, client_settings=client_settings()) as admin:
                return await query(admin)

    try:
        with context.scope(cleanup=False), _exiting_after(PROCESS_TIMEOUT_S):
            found = asyncio.run(names())
    except (ClientError, CliError, OSError, ValueError):  # TimeoutError is an OSError
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:OFFERED_MAX]


@contextmanager
def _exiting_after(seconds: float) -> Iterator[None]:
    """Exit the process if the block takes longer than ``seconds``, without waiting for its threads."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
