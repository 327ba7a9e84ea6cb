"""Names for the Tab key: topics and groups, from a name server that answers at once, or none.

Nothing here may fail: whoever presses Tab has asked for no command and can make nothing of an error. Nothing here may
last: after `ANSWER_S` nothing is offered, and after `END_S` the process ends, whatever it hangs in (a name that no DNS
server knows keeps a thread for minutes).
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

ANSWER_S: Final = 0.5
END_S: Final = 2.0
OFFERED_MAX: Final = 500

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete=` of whatever takes a topic."""

    async def ask(admin: Admin) -> Sequence[str]:
        return await admin.topics.all()

    return _offer(context, ask, incomplete)


def complete_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For `shell_complete=` of whatever takes a consumer group."""

    async def ask(admin: Admin) -> Sequence[str]:
        return sorted(await admin.groups.all())

    return _offer(context, ask, incomplete)


def _offer(
    context: click.Context, ask: Callable[[Admin], Awaitable[Sequence[str]]], incomplete: str
) -> list[CompletionItem]:
    name_server = context.params.get("name_server")
    if not isinstance(name_server, str):
        return []  # what was typed is no address

    async def names() -> Sequence[str]:
        async with asyncio.timeout(ANSWER_S):
            async with Admin(name_server, client_settings=client_settings()) as admin:
                return await ask(admin)

    try:
        with context.scope(cleanup=False), _ending_after(END_S):
            found = asyncio.run(names())
    except (ClientError, CliError, OSError, ValueError):  # TimeoutError is an OSError
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:OFFERED_MAX]


@contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """End the process if what is inside takes longer, without waiting for anything."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
