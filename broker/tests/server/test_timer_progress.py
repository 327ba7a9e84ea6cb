"""Progress of timers: a state is durable with the copies that it needs, on a master, a slave and the next master."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_server_delay_progress import FakeLog

from gantry_broker.errors import QueueRebuilding
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.timers.java_progress import JavaProgress, read_java_state, write_java_progress
from gantry_broker.server.timers.marks import Mark, TimerState
from gantry_broker.server.timers.progress import (
    MARKS_MAX,
    STEPS_MAX,
    TimerDocument,
    TimerProgress,
)
from gantry_broker.server.timers.rolling import TimerRoller
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import running_broker, wait_until
from gantry_wire import names
from gantry_wire.commands.admin import DataVersion


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def progress(log: FakeLog) -> TimerProgress:
    core: Any = SimpleNamespace(store=log, clock=FakeClock(), persistence=log)
    return TimerProgress(cast("BrokerCore", core))


def state(due_ms: int, read: int = 50) -> TimerState:
    """Return a state in which everything up to a time is delivered."""
    return TimerState().advance(due_ms, 1, read)


def document(due_ms: int) -> TimerDocument:
    return TimerDocument(read=50, marks=[(0, due_ms, 1)])


def test_file_holds_only_settled_states(log: FakeLog, progress: TimerProgress) -> None:
    """A state is settled when its copies are flushed, and on as many slaves as sends wait for."""
    log.wrote = 100
    progress.change(state(7))

    assert progress.settle_steps() == TimerState()
    log.flushed = 100
    assert progress.settle_steps() == TimerState()
    log.flushed, log.confirmed = 99, 100
    assert progress.settle_steps() == TimerState()
    log.flushed = 100
    assert progress.document().state() == state(7)


def test_unsettled_states_are_written_later(log: FakeLog, progress: TimerProgress) -> None:
    """The file is updated even if nothing else happens for hours; an unchanged state is not written again."""
    log.wrote = 100
    progress.change(state(7))
    progress.change(state(7))
    assert log.marks == ["timerProgress"]

    progress.document()
    assert log.marks == ["timerProgress"] * 2


def test_unconfirmed_states_are_limited(log: FakeLog, progress: TimerProgress) -> None:
    """After days without a slave all deliveries are settled in the end, if later than possible."""
    for number in range(1, 4 * STEPS_MAX):
        log.wrote = number * 10
        progress.change(state(number))
    assert len(progress._steps) <= STEPS_MAX

    log.flushed = log.confirmed = log.wrote
    assert progress.settle_steps() == progress.state


def test_document_of_a_master_applies_when_the_log_has_its_end(log: FakeLog, progress: TimerProgress) -> None:
    """Applied earlier, it would skip messages whose copies are not here yet."""
    progress.receive(document(5), 100)
    progress.receive(document(9), 200)

    progress.apply_up_to(99)
    assert progress.state == TimerState()
    progress.apply_up_to(199)
    assert progress.state == state(5)
    progress.apply_up_to(200)
    assert progress.state == state(9)
    assert progress.settle_steps() == TimerState(), "the file has a state whose copies are not flushed yet"


def test_new_stream_reverts_to_what_the_log_supports(log: FakeLog, progress: TimerProgress) -> None:
    """A master that becomes a slave forgets deliveries whose copies its new master may not have."""
    log.wrote = log.flushed = log.confirmed = 100
    progress.change(state(5))
    progress.settle_steps()
    log.wrote = 200
    progress.change(state(9))
    log.wrote = 150

    progress.begin_copying()

    assert progress.state == state(5)


def test_promotion_forgets_what_the_log_has_not_reached(log: FakeLog, progress: TimerProgress) -> None:
    """Documents up to the end of the log count, later ones do not; messages beyond the queue's end are new."""
    log.wrote = 100
    progress.receive(document(5), 100)
    progress.receive(document(9), 200)
    log.queue_end = 30

    progress.become_master()
    log.wrote = 300
    progress.apply_up_to(300)

    assert progress.state == state(5, read=30)


def test_marks_are_merged_when_the_clock_has_caught_up() -> None:
    """A clock that is set back again and again adds a mark each time; delivery beyond them merges them."""
    changed = state(1_000)
    for number in range(MARKS_MAX - 1):
        changed = changed.set_back(60 + number, 900 - number)
    assert len(changed.marks) == MARKS_MAX

    assert changed.advance(2_000, 3, 200).marks == (Mark(0, 2_000, 3),)


def test_progress_of_rocketmq_is_adopted_if_it_is_further(tmp_path: Path, progress: TimerProgress) -> None:
    """A store that RocketMQ has used continues after what that has delivered, and never moves back."""
    disk, store = RealDisk(), str(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "timerwheel").write_bytes(b"")
    file = tmp_path / "config/timercheck"
    assert read_java_state(disk, store) == TimerState()
    for data in (b"", b"\0" * 31, struct.pack(">4q", -1, 0, 4, 4)):
        file.write_bytes(data)
        assert read_java_state(disk, store) == TimerState()

    file.write_bytes(struct.pack(">4q", 9_000, 0, 40, 40) + bytes(4064))
    java = read_java_state(disk, store)
    assert java.is_passed(9_000, 39) and not java.is_passed(9_001, 0) and java.read == 40
    progress.adopt(java)
    assert progress.state == java
    progress.adopt(java._replace(read=10))
    assert progress.state == java


def test_progress_is_written_for_rocketmq(tmp_path: Path, progress: TimerProgress) -> None:
    """RocketMQ reads the topic from the first pending message on; its own files of pending timers are older."""
    disk, store = RealDisk(), str(tmp_path)
    for name in ("config", "timerlog"):
        (tmp_path / name).mkdir()
    (tmp_path / "timerlog/0").write_bytes(b"x")
    (tmp_path / "timerwheel").write_bytes(b"x")

    write_java_progress(disk, store, JavaProgress(9_876, 30, DataVersion(state_version=1, timestamp=2, counter=3)))

    data = (tmp_path / "config/timercheck").read_bytes()
    assert struct.unpack_from(">7q", data) == (9_000, 0, 30, 30, 1, 2, 3)
    assert (len(data), sorted(path.name for path in tmp_path.iterdir())) == (4096, ["config"])
    assert read_java_state(disk, store) == TimerState(), "what Gantry has written is no progress of RocketMQ"
    (tmp_path / "config/timercheck").write_bytes(struct.pack(">4q", 9_500, 7, 35, 35) + data[32:])
    (tmp_path / "timerwheel").write_bytes(b"x")
    assert read_java_state(disk, store).read == 35, "RocketMQ has written the file since"


def overwritten(data: bytes) -> list[bytes]:
    """Return damaged copies of a file: a cut at any byte, any flipped bit of the used part, garbage in its place."""
    used = 66
    cut = [data[:end] for end in range(used)]
    flipped = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(used) for bit in range(8)]
    garbage = [struct.pack(">4q", *[1 << 60] * 4).ljust(512, b"\x5a") + data[512:], b"\x7f" * 4096]
    return cut + flipped + garbage


def test_damaged_file_for_rocketmq_skips_no_timer(
    tmp_path: Path, progress: TimerProgress, caplog: pytest.LogCaptureFixture
) -> None:
    """Without RocketMQ's files of pending timers beside it, a file that Gantry has not left so is damaged."""
    disk, store = RealDisk(), str(tmp_path)
    (tmp_path / "config").mkdir()
    write_java_progress(disk, store, JavaProgress(9_876, 30, DataVersion(state_version=1, timestamp=2, counter=3)))
    file = tmp_path / "config/timercheck"
    progress.change(state(9_876))
    for damaged in overwritten(file.read_bytes()):
        file.write_bytes(damaged)
        caplog.clear()
        progress.adopt(read_java_state(disk, store))
        assert progress.state == state(9_876), damaged[:66].hex()
        assert [record.levelname for record in caplog.records] == ["WARNING"], damaged[:66].hex()


def test_garbage_is_believed_with_files_of_rocketmq(tmp_path: Path, progress: TimerProgress) -> None:
    """The twin: RocketMQ has no checksum in its file, so beside its own files the numbers count."""
    (tmp_path / "config").mkdir()
    (tmp_path / "timerwheel").write_bytes(b"x")
    (tmp_path / "config/timercheck").write_bytes(struct.pack(">4q", *[1 << 60] * 4))
    progress.change(state(9_876))
    progress.adopt(read_java_state(RealDisk(), str(tmp_path)))
    assert progress.state.read == 1 << 60


async def test_stop_succeeds_while_the_timer_queue_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the first pending timer for RocketMQ meets a damaged unit: RocketMQ reads from the start then."""

    async def meet_damage(roller: TimerRoller, start: int) -> int:
        raise QueueRebuilding(names.TIMER_TOPIC, 0, start)

    monkeypatch.setattr(TimerRoller, "find_pending", meet_damage)
    async with running_broker(tmp_path) as broker:
        await wait_until(lambda: broker.timers.is_ready)
    assert struct.unpack_from(">7q", (tmp_path / "config/timercheck").read_bytes())[2] == 0
