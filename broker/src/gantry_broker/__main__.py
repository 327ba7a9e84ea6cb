"""`python -m gantry_broker -c broker.conf`: run one broker until a signal stops it.

SIGTERM and SIGINT request a clean stop at any time, from before the settings are read until the broker has stopped. A
second signal does not speed it up. To stop at once, send SIGKILL; the next start recovers.
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

try:
    import gantry_speedups
except ImportError as error:  # GANTRY_SPEEDUPS is invalid, or requires a compiled module that is not usable
    sys.stderr.write(f"gantry broker: {error}\n")
    sys.exit(2)  # EXIT_SETTINGS
from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError, describe_disk_error
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.core.stopping import StopTimeout
from gantry_broker.setting_keys import (
    broker_settings,
    describe_settings,
    parse_properties_file,
    unknown_keys,
    without_secrets,
)
from gantry_broker.settings import BrokerSettings
from gantry_remoting.addresses import join_address
from gantry_remoting.file_access import limit_existing_files, limit_new_files
from gantry_remoting.logs import set_up_logs
from gantry_remoting.setting_kinds import SettingsError
from gantry_status import PageWriter
from gantry_wire.structs import make_structs_ready

log = logging.getLogger("gantry_broker")

EXIT_SETTINGS = 2
EXIT_FAILED = 1
GC_THRESHOLD: Final = 20_000
"""Objects between two runs of the garbage collector: most objects are freed by reference counting."""


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gantry broker",
        description="Run one broker. Settings come from a broker.conf with RocketMQ's names; -o sets single ones.",
        epilog="Example: gantry broker -c broker.conf -n 127.0.0.1:9876 -o storePathRootDir=/var/lib/gantry",
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="read settings from a broker.conf (key=value lines)")
    parser.add_argument(
        "-n", "--namesrv", metavar="ADDRESSES", help="set the name servers, host:port;host:port (namesrvAddr)"
    )
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="KEY=VALUE", help="set one key; repeatable"
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--settings", action="store_true", help="list every setting with its default and meaning")
    return parser.parse_args(arguments)


def read_settings(options: argparse.Namespace) -> BrokerSettings:
    """Read the settings from the file, then from the command line. Raises SettingsError."""
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
        if not separator or not key.strip():  # The text may be shown: it is in the command line already.
            raise SettingsError(f"-o {option}: expected KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return broker_settings(pairs)


def find_command_line_keys(options: argparse.Namespace) -> set[str]:
    """Return the keys that `-o` options set: they win over changes that earlier runs have made."""
    return {option.partition("=")[0].strip() for option in options.option}


def limit_files(settings: BrokerSettings) -> None:
    """Restrict access to new files, and to those that the store holds already, as `fileAccess` demands."""
    limit_new_files(settings.file_access)
    changed, refused = limit_existing_files(settings.store_path, settings.file_access)
    if changed:
        log.warning("restricted access to files of the store that were open to other users", extra={"files": changed})
    if refused:
        facts = {"files": refused, "path": settings.store_path}
        log.warning(
            "files of the store are open to other users and belong to another user; change their modes", extra=facts
        )


def raise_file_limit() -> None:
    """Raise the limit of descriptors to what the system allows: queues and connections need many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@final
class StoppedWhileRecovering(BrokerError):
    """A signal arrived before the store was open. Nothing was lost; the next start recovers from the beginning."""


@final
class StopSignals:
    """Handlers of SIGTERM and SIGINT that stay installed when the event loop is gone, unlike the loop's own."""

    def __init__(self) -> None:
        self.has_received = False
        self._notify: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.has_received = True
        if self._notify is not None:
            self._notify()

    def create_event(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """Return an event of ``loop`` that is set when a signal arrives."""
        event = asyncio.Event()

        def set_event() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        self._notify = set_event
        if self.has_received:
            event.set()
        return event

    @staticmethod
    def ignore() -> None:
        """Ignore further signals, which are too late and must not change the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


def set_up_garbage_collector() -> None:
    """Exclude existing objects from garbage collection. Call it when all long-lived objects exist.

    The interpreter's switch interval is left at Python's 5 ms. With 50 ms a helper thread interrupts an append less
    often, but the loop also waits up to 50 ms for the helper thread to give up the GIL: measured over loopback, with 64
    sends in flight on one connection, the rate fell from 94,000 to 71,000 a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def run(settings: BrokerSettings, signals: StopSignals, command_line_keys: Collection[str] = ()) -> int:
    """Run a broker until SIGTERM or SIGINT, and return the exit code. If the store or a task fails, exit at once."""
    stop = signals.create_event(asyncio.get_running_loop())

    def show_progress(done: int, total: int) -> None:
        log.info("recovering", extra={"checked_bytes": done, "total_bytes": total})
        if signals.has_received:
            raise StoppedWhileRecovering(
                "a signal arrived during recovery; nothing is lost, and the next start recovers again"
            )

    try:
        broker = Broker(
            settings,
            disk=RealDisk(),
            clock=SystemClock(),
            open_page=PageWriter,
            has_control_socket=True,
            command_line_keys=command_line_keys,
        )
        await broker.start(show_progress)
    except (OSError, BrokerError) as error:
        reason = describe_disk_error(error) if isinstance(error, OSError) else str(error)
        log.error("cannot start", extra={"reason": reason})
        return EXIT_FAILED
    set_up_garbage_collector()
    print(f"broker listening on {join_address(settings.listen_host, broker.port)}", flush=True)
    failed = asyncio.ensure_future(broker.wait_until_failed())
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
        log.critical("stop timed out; the next start recovers", extra={"reason": str(error)})
        exit_now()
    if not is_clean:
        log.error("stopped, but the store is not clean; the next start recovers")
        return EXIT_FAILED
    log.info("stopped")
    return 0


async def _give_up(broker: Broker, error: BaseException | None) -> NoReturn:
    log.critical("broker failed; exiting", extra={"reason": str(error)})
    await broker.publish_failure(error or RuntimeError("unknown reason"))
    exit_now()


def exit_now() -> NoReturn:
    """Exit without waiting for threads: one of them may hang in a call to the disk."""
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
        print(
            "gantry broker: cannot run with -O, since assertions guard the store; start it without -O", file=sys.stderr
        )
        return EXIT_SETTINGS
    signals = StopSignals()
    try:
        settings = read_settings(options)
    except SettingsError as error:
        print(f"gantry broker: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    raise_file_limit()
    make_structs_ready()
    log.info("starting", extra={"hot_path": gantry_speedups.describe(), **without_secrets(settings.given)})
    if gantry_speedups.is_degraded:
        log.warning("compiled hot path is unusable; using the Python path", extra={"reason": gantry_speedups.reason})
    limit_files(settings)
    left_out = unknown_keys(settings.given)
    if left_out:
        log.warning("ignored settings that this version does not know", extra={"keys": left_out})
    try:
        return uvloop.run(run(settings, signals, find_command_line_keys(options)))
    finally:
        signals.ignore()


if __name__ == "__main__":
    sys.exit(main())
