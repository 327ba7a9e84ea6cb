"""`gantry nameserver` and `gantry broker`: the servers themselves, in the foreground, with their own options.

They replace this process, so that signals, exit codes and memory are theirs alone.
"""

import os
import sys

import click

PASS_ON = {"ignore_unknown_options": True, "help_option_names": [], "allow_interspersed_args": False}


@click.command(context_settings=PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nameserver(arguments: tuple[str, ...]) -> None:
    """Run a name server in the foreground."""
    _become("gantry_nameserver", arguments)


@click.command(context_settings=PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def broker(arguments: tuple[str, ...]) -> None:
    """Run a broker in the foreground."""
    _become("gantry_broker", arguments)


def _become(module: str, arguments: tuple[str, ...]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
