"""`python -m gantry_broker -c broker.conf`: one broker until a signal stops it."""

import argparse
import asyncio
import gc
import logging
import resource
import signal
import sys

import uvloop

from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError
from gantry_broker.logs import set_up_logs
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.settings import (
    BrokerSettings,
    SettingsError,
    broker_settings,
    describe_settings,
    parse_properties_file,
)

log = logging.getLogger("gantry_broker")

EXIT_SETTINGS = 2
EXIT_FAILED = 1


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gantry broker",
        description="Run one broker. Settings come from a broker.conf with RocketMQ's names; -o sets single ones.",
        epilog="Example: gantry broker -c broker.conf -n 127.0.0.1:9876 -o storePathRootDir=/var/lib/gantry",
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="a broker.conf: key=value lines")
    parser.add_argument("-n", "--namesrv", metavar="ADDRESSES", help="name servers, host:port;host:port (namesrvAddr)")
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="KEY=VALUE", help="set one key, repeatable"
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--settings", action="store_true", help="list every setting with its default and meaning")
    return parser.parse_args(arguments)


def read_settings(options: argparse.Namespace) -> BrokerSettings:
    """File, then command line. Raises SettingsError."""
    pairs: dict[str, str] = {}
    if options.config is not None:
        try:
            with open(options.config, encoding="utf-8") as file:
                pairs = parse_properties_file(file.read())
        except OSError as error:
            raise SettingsError(f"cannot read {options.config}: {error.strerror}") from error
    if options.namesrv is not None:
        pairs["namesrvAddr"] = options.namesrv
    for option in options.option:
        pairs.update(parse_properties_file(option))
    return broker_settings(pairs)


def raise_file_limit() -> None:
    """Queues and connections need descriptors: take what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def show_progress(done: int, total: int) -> None:
    log.info("recovering", extra={"checked_bytes": done, "total_bytes": total})


async def run(settings: BrokerSettings) -> int:
    """Until SIGTERM or SIGINT, or until the store fails."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(settings, disk=RealDisk(), clock=SystemClock())
    try:
        await broker.start(show_progress)
    except (OSError, BrokerError) as error:
        log.error("cannot start", extra={"reason": str(error)})
        return EXIT_FAILED
    gc.collect()
    gc.freeze()  # what exists now lives as long as the process; the collector need not look at it again
    print(f"broker listening on {settings.listen_host}:{broker.port}", flush=True)
    failed = asyncio.ensure_future(broker.failed())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if failed.done():
        log.critical("the broker cannot go on and exits", extra={"reason": str(failed.exception())})
        return EXIT_FAILED
    failed.cancel()
    log.info("stopping")
    await broker.close()
    log.info("stopped")
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    if options.settings:
        for key, default, text in describe_settings():
            print(f"{key}={default}\n    {text}")
        return 0
    set_up_logs(options.log_level)
    if not __debug__:
        print("gantry broker: do not run with -O: assertions guard the store", file=sys.stderr)
        return EXIT_SETTINGS
    try:
        settings = read_settings(options)
    except SettingsError as error:
        print(f"gantry broker: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    raise_file_limit()
    log.info("starting", extra=dict(settings.given))
    return uvloop.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
