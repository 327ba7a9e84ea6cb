"""`gantry console`: an address that opens the console of the local group once, in one browser.

The group's token never leaves its file and this machine's sidecars. What is printed holds a one-time code, which may
stay in a terminal's history, a log or a pipe, and opens nothing from there.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

import click

from gantry_cli.errors import Absent, CliError
from gantry_cli.examples import examples
from gantry_cli.local.state import GroupState
from gantry_cli.options import data_option

TIMEOUT_S: Final = 5.0


@click.command(
    epilog=examples(
        ("gantry console", "of the group that runs here"),
        ("gantry console --data DIR", "of another one"),
        ('xdg-open "$(gantry console)"', "open it at once"),
    )
)
@data_option
def console(data: Path) -> None:
    """Print an address that opens the local group's console.

    It works once and for ten minutes; call this again for another browser or tab. The page then may look, read messages
    and resend dead letters for twelve hours.
    """
    state = GroupState(data)
    record = state.read_group()
    if record is None or not record.console_url:
        raise Absent(f"no group with a console runs in {data}", "start one: gantry up")
    try:
        click.echo(console_address(record.console_url, state.token()))
    except OSError as error:
        raise CliError(
            f"the sidecar behind {record.console_url} gives no code: {error}", "look at `gantry status` and its log"
        ) from error


def console_address(console_url: str, token: str) -> str:
    """The console's address with a new code. Blocks. Raises OSError when its sidecar gives none."""
    base = console_url.removesuffix("/").removesuffix("/console")
    # The token is for this machine's own sidecar: no proxy of the environment's is shown it.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{base}/v1/console/codes", data=b"", headers=headers, method="POST")
    try:
        with direct.open(request, timeout=TIMEOUT_S) as answer:
            return f"{console_url}#code={json.load(answer)['code']}"
    except (ValueError, KeyError) as error:
        raise OSError("its answer holds no code") from error
