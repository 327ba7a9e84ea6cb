"""`python -m gantry_broker -c broker.conf`: one broker until a signal stops it.

SIGTERM and SIGINT ask for a clean stop, from the first line of `main` to the last, however often they come: a second
one is no order to hurry. Whoever is in a hurry sends SIGKILL, and the next start recovers.
"""

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Final, NoReturn, final

import uvloop

from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError, describe_disk_error
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.core.stopping import StopTimeout
from gantry_broker.setting_keys import broker_settings, describe_settings, parse_properties_file, unknown_keys
from gantry_broker.settings import BrokerSettings, SettingsError
from gantry_remoting.addresses import join_address
from gantry_remoting.file_access import limit_existing_files, limit_new_files
from gantry_remoting.logs import set_up_logs
from gantry_status import PageWriter
from gantry_wire.structs import ready_structs

log = logging.getLogger("gantry_broker")

EXIT_SETTINGS = 2
EXIT_FAILED = 1
GC_THRESHOLD: Final = 20_000
"""Objects between two runs of the garbage collector: what a pass makes is freed by counting, not by collecting."""


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
        except SettingsError as error:
            raise SettingsError(f"{options.config}: {error}") from error
    if options.namesrv is not None:
        pairs["namesrvAddr"] = options.namesrv
    for option in options.option:
        key, separator, value = option.partition("=")
        if not separator or not key.strip():  # its author sees it in the command line already
            raise SettingsError(f"-o {option}: is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return broker_settings(pairs)


def insisted_keys(options: argparse.Namespace) -> set[str]:
    """The keys that this start's command line names: they win over what was changed at run time."""
    return {option.partition("=")[0].strip() for option in options.option}


def limit_files(settings: BrokerSettings) -> None:
    """Restrict what this process writes, and what the store holds already, to the readers that `fileAccess` names."""
    limit_new_files(settings.file_access)
    changed, refused = limit_existing_files(settings.store_path, settings.file_access)
    if changed:
        log.warning("files of the store were open to others and are not any more", extra={"files": changed})
    if refused:
        facts = {"files": refused, "path": settings.store_path}
        log.warning("files of the store belong to another user and are open to others; change their modes", extra=facts)


def raise_file_limit() -> None:
    """Queues and connections need descriptors: take what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@final
class StoppedWhileRecovering(BrokerError):
    """A signal came before the store was open. Nothing was lost; the next start recovers from the beginning."""


@final
class StopSignals:
    """SIGTERM and SIGINT. Handlers of Python's own, which stay when the event loop is gone, unlike the loop's."""

    def __init__(self) -> None:
        self.are_here = False
        self._tell: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._came)

    def _came(self, _number: int, _frame: FrameType | None) -> None:
        self.are_here = True
        if self._tell is not None:
            self._tell()

    def tell(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """An event of ``loop`` that is set when one has come."""
        event = asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        self._tell = tell
        if self.are_here:
            event.set()
        return event

    @staticmethod
    def ignore() -> None:
        """What still comes is too late to mean anything, and must not spoil the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def set_up_collector() -> None:
    """Exclude what exists now from garbage collection; called when everything that lives as long as the process exists.

    The interval after which a thread takes the interpreter's lock from another is left at Python's 5 ms. With 50 ms an
    append is interrupted less often in its middle, but the loop waits as long for a helper thread as that does for it:
    measured over loopback, 64 sends under way on one connection, the rate fell from 94,000 to 71,000 a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def run(settings: BrokerSettings, signals: StopSignals, insisted: Collection[str] = ()) -> int:
    """Until SIGTERM or SIGINT, or until the store fails."""
    stop = signals.tell(asyncio.get_running_loop())

    def show_progress(done: int, total: int) -> None:
        log.info("recovering", extra={"checked_bytes": done, "total_bytes": total})
        if signals.are_here:
            raise StoppedWhileRecovering("a signal came while recovering; nothing is lost, the next start begins again")

    try:
        broker = Broker(
            settings, disk=RealDisk(), clock=SystemClock(), open_page=PageWriter, takes_orders=True, insisted=insisted
        )
        await broker.start(show_progress)
    except (OSError, BrokerError) as error:
        reason = describe_disk_error(error) if isinstance(error, OSError) else str(error)
        log.error("cannot start", extra={"reason": reason})
        return EXIT_FAILED
    set_up_collector()
    print(f"broker listening on {join_address(settings.listen_host, broker.port)}", flush=True)
    failed = asyncio.ensure_future(broker.failed())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if failed.done():
        await _give_up(broker, failed.exception())
    failed.cancel()
    return await _stop(broker)


async def _stop(broker: Broker) -> int:
    log.info("stopping")
    try:
        is_clean = await broker.close()
    except StopTimeout as error:
        log.critical("the stop took too long; the next start recovers", extra={"reason": str(error)})
        end_now()
    if not is_clean:
        log.error("stopped, and the store is not clean; the next start recovers")
        return EXIT_FAILED
    log.info("stopped")
    return 0


async def _give_up(broker: Broker, error: BaseException | None) -> NoReturn:
    log.critical("the broker cannot go on and exits", extra={"reason": str(error)})
    await broker.give_up(error or RuntimeError("unknown reason"))
    end_now()


def end_now() -> NoReturn:
    """End without waiting for threads: one of them may hang in a call to the disk."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(EXIT_FAILED)


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
    signals = StopSignals()
    try:
        settings = read_settings(options)
    except SettingsError as error:
        print(f"gantry broker: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    raise_file_limit()
    ready_structs()
    log.info("starting", extra=dict(settings.given))
    limit_files(settings)
    left_out = unknown_keys(settings.given)
    if left_out:
        log.warning("settings are left out that this version does not know", extra={"keys": left_out})
    try:
        return uvloop.run(run(settings, signals, insisted_keys(options)))
    finally:
        signals.ignore()


if __name__ == "__main__":
    sys.exit(main())
