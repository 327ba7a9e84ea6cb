"""Run a broker without one of the guards that keep a group's promises. A program, not a module to import from brokers.

    python run_without_guards.py --without GUARD -m gantry_broker -c broker.conf

Without a guard the checker must find a violation: that shows that the tests can. The guards are methods that are
replaced here, where no shipped code can see it.
"""

import argparse
import errno
import runpy
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantry_broker.ha.acknowledgement import AckSet, SlaveProgress
    from gantry_broker.ports.real_disk import RealFile
    from gantry_broker.server.roles.role_orders import RoleOrders
    from gantry_status.orders import Promised


def replace(owner: object, name: str, method: object) -> None:
    """Replace a method or property of a class."""
    setattr(owner, name, method)


def promise_and_keep_following() -> None:
    """Remove the effect of promises: a slave confirms them, and still follows its old master."""
    from gantry_broker.server.roles.role_orders import RoleOrders
    from gantry_status.orders import Promised

    async def promise(orders: "RoleOrders", epoch: int, to: str) -> "Promised":
        roles = orders.roles
        history = roles.replication.slave_store.history
        return Promised(
            epoch=epoch, identity=roles.store.identity.uuid, broker_id=roles.settings.broker_id,
            last_epoch=history.epoch, end=roles.store.log.wrote, granted_ms=roles.replication.slave.granted_ms,
        )  # fmt: skip

    replace(RoleOrders, "promise", promise)


def count_connections() -> None:
    """Count every connection as a slave, also one with an identity or a broker id that is connected already."""
    from gantry_broker.ha.acknowledgement import AckSet, SlaveProgress

    def join(slaves: "AckSet", identity: str, broker_id: int, now: float) -> "SlaveProgress":
        name = identity if identity not in slaves._slaves else f"{identity} for the {len(slaves) + 1}. time"
        slave = slaves._slaves[name] = SlaveProgress(name, broker_id, acked_at=now)
        return slave

    replace(AckSet, "join", join)


def count_all_slaves() -> None:
    """Count acks of all slaves, also of those that are not electable."""
    from gantry_broker.ha.acknowledgement import AckSet

    replace(AckSet, "_counted_slaves", lambda slaves: iter(slaves))


def acknowledge_without_grants() -> None:
    """Let a master of an asynchronous group always acknowledge."""
    from gantry_broker.ha.acknowledgement import Grants

    replace(Grants, "may_acknowledge", lambda grants, now_ms: True)


def acknowledge_with_one_grant() -> None:
    """Let a master of an asynchronous group acknowledge while at least one electable slave grants it."""
    from gantry_broker.ha.acknowledgement import Grants

    def until_ms(grants: "Grants") -> int:
        return max((grants._until_ms.get(number, -1) for number in grants.electable), default=1 << 62)

    replace(Grants, "until_ms", property(until_ms))


def acknowledge_with_the_fastest_slave() -> None:
    """Let one ack be enough, however many a send has to wait for."""
    from gantry_broker.ha.acknowledgement import AckSet

    replace(AckSet, "acked_offset", lambda slaves: max((one.received for one in slaves), default=-1))


def show_unconfirmed() -> None:
    """Show consumers everything that is written, confirmed or not."""
    from gantry_broker.store.positions import LogPositions

    replace(LogPositions, "confirmed", property(lambda positions: positions._log.wrote))


def skip_clamping_of_offsets() -> None:
    """Keep consumer offsets of the tables, even beyond the end of the queue."""
    from gantry_broker.server.roles.stored_tables import StoredTables

    replace(StoredTables, "clamp_offsets", lambda tables: None)


def cut_in_memory_only() -> None:
    """Let a slave cut its log only in memory: the records stay in its files, and return at a restart."""
    from gantry_broker.store.commit_log import CommitLog

    replace(CommitLog, "truncate", lambda log, end: None)


def follow_any_epoch() -> None:
    """Let a slave announce no promise, and accept a master of any epoch."""
    from gantry_broker.ha import slave_session
    from gantry_broker.ha.slave_session import SlaveFacts, SlaveSession

    begin = SlaveSession.__init__

    def initialise(session: SlaveSession, facts: SlaveFacts, *arguments: object, **options: object) -> None:
        begin(session, facts._replace(promised_epoch=0), *arguments, **options)  # type: ignore[arg-type]

    replace(slave_session.SlaveSession, "__init__", initialise)


GUARDS: Final[dict[str, Callable[[], None]]] = {
    "promises": promise_and_keep_following,
    "identity": count_connections,
    "electable": count_all_slaves,
    "grants": acknowledge_without_grants,
    "every-grant": acknowledge_with_one_grant,
    "every-ack": acknowledge_with_the_fastest_slave,
    "confirmed": show_unconfirmed,
    "offsets": skip_clamping_of_offsets,
    "durable-cut": cut_in_memory_only,
    "stream-epoch": follow_any_epoch,
}
"""The functions that remove a guard from this process, by the guard's name for `--without`."""


def treat_files_as_old() -> None:
    """Treat every closed file as expired, so that a test need not wait for hours."""
    from gantry_broker.store.retention_clock import RetentionClock

    replace(RetentionClock, "latest_store_time", lambda clock, end, newest_ms: 0)


def fail_writes_on_signal() -> None:
    """From SIGUSR2 on let every write and sync fail, as on a broken disk."""
    from gantry_broker.ports.real_disk import RealFile

    pwrite, sync = RealFile.pwrite, RealFile.sync
    broken: list[int] = []

    def failing_pwrite(file: "RealFile", data: bytes | bytearray | memoryview, position: int) -> int:
        if broken:
            raise OSError(errno.EIO, "the disk is broken")
        return pwrite(file, data, position)

    def failing_sync(file: "RealFile") -> None:
        if broken:
            raise OSError(errno.EIO, "the disk is broken")
        sync(file)

    signal.signal(signal.SIGUSR2, lambda number, frame: broken.append(number))
    replace(RealFile, "pwrite", failing_pwrite)
    replace(RealFile, "sync", failing_sync)


OTHER_REPLACEMENTS: Final[dict[str, Callable[[], None]]] = {
    "retention-age": treat_files_as_old,
    "working-disk": fail_writes_on_signal,
}
"""Changes of the broker that remove no guard, by the name of what it lacks then; also names for `--without`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without", action="append", default=[], choices=sorted(GUARDS | OTHER_REPLACEMENTS))
    options, rest = parser.parse_known_args()
    for guard in options.without:
        (GUARDS | OTHER_REPLACEMENTS)[guard]()
    assert rest[:1] == ["-m"], "expected -m and a module after the guards"
    sys.argv = rest[1:]
    runpy.run_module(rest[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
