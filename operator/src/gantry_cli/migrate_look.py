"""Everything that is asked before a migration: of the old broker, of its name servers, of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gantry_cli.account import credentials
from gantry_cli.migrate_checks import Seen
from gantry_cli.migrate_record import Home, stream_address
from gantry_cli.migrate_source import ApacheBroker, CannotMigrate, Listing, Names
from gantry_cli.migrate_target import free_bytes, log_files, ports_of, reach, taken


async def only_name(names: Names) -> str:
    """The broker that is meant when none is named."""
    found = await names.names()
    if len(found) != 1:
        known = ", ".join(found[:20]) or "none"
        raise CannotMigrate(
            f"the name servers know these brokers: {known}", "name one with --broker, or others with -n"
        )
    return found[0]


def master_of(listings: Sequence[Listing], name: str) -> str:
    """Where the old master is."""
    for one in listings:
        if 0 in one.brokers:
            return one.brokers[0]
    raise CannotMigrate(f"no name server knows a master of {name}", "name its name servers with -n")


def free_number(listings: Sequence[Listing]) -> int:
    """A brokerId that nobody of the group has."""
    known = {number for one in listings for number in one.brokers}
    return next(number for number in range(1, len(known) + 2) if number not in known)


async def look(
    old: ApacheBroker,
    listings: Sequence[Listing],
    home: Home,
    conf: Mapping[str, str],
    *,
    original: Mapping[str, str],
    is_running: bool,
) -> Seen:
    """Ask. ``original`` are settings that an earlier run has changed, as they were before."""
    config, runtime, log = await old.config(), await old.runtime(), await old.log()
    halves, halves_open = await old.transactions()
    stream = conf.get("haMasterAddress") or stream_address(config, old.address)
    copied, file_bytes = log_files(home)
    return Seen(
        version=runtime.get("brokerVersionDesc", ""),
        config={**config, **original},
        log=log,
        stream=stream,
        stream_failure=await reach(stream),
        halves=halves,
        halves_open=halves_open,
        timers=await old.timers(),
        popping=await old.popping(),
        listings=listings,
        old_address=old.address,
        ports_taken=[] if is_running else taken(conf.get("bindAddress", ""), ports_of(conf)),
        free_bytes=free_bytes(home.path),
        copied_bytes=min(copied, log.end - log.begin),
        own_file_bytes=file_bytes,
        own_id=int(conf.get("brokerId", "1")),
        is_signing=credentials() is not None,
        own_conf=conf,
    )
