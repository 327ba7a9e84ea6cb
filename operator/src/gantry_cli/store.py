"""`gantry store`: look at the files of a store, without a broker, on the day when something is wrong with them."""

import click

from gantry_cli.examples import examples
from gantry_cli.store_dump import dump
from gantry_cli.store_inspect import inspect
from gantry_cli.store_repair import accept_loss, recover_store, repair_plan
from gantry_cli.store_verify import verify


@click.group(
    epilog=examples(
        ("gantry store inspect DIR", "what is here, and what would a start do"),
        ("gantry store verify DIR", "is every byte of it as it must be"),
        ("gantry store dump DIR --offset 73400320", "what is at this place of the log"),
        ("gantry store repair-plan DIR", "what a start would cut, lose and build again"),
        ("gantry store recover DIR", "do it, without a broker"),
        ("gantry store accept-loss DIR", "go on without log files that are gone for good"),
    )
)
def store() -> None:
    """Look into the files of a store, ours or RocketMQ's.

    All of these but `recover` and `accept-loss` only read: nothing is created, locked or changed, whether the store is
    whole, damaged, empty, or in use at this moment.

    Exit codes: 0 good, 1 damage was found, 2 it was typed wrongly, 3 nothing is there, 4 it cannot be read,
    130 Ctrl-C.
    """


for command in (inspect, verify, dump, repair_plan, recover_store, accept_loss):
    store.add_command(command)
