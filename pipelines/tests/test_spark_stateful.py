"""The sample of docs/spark-stateful.md with real brokers: duplicates, days, late messages, bounded state, and kills.

A message has its hour in its body, which replaces storeTime: days pass within a test. The kills run the program itself.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import pytest

pytest.importorskip("pyspark")
import deduplicate
from deduplicate import OUTPUT, STATE_STORE, FirstMessages, first_messages
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, expr, unix_millis
from pyspark.sql.types import Row
from spark_kit.connect import Session, spark_environment, wait_until
from spark_kit.processes import Group
from test_spark_sink_session import messages

from gantry_client import Message
from gantry_client.sync import Admin, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.verify, pytest.mark.needs_spark, pytest.mark.xdist_group("spark")]

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLE: Final = Path(deduplicate.__file__)
PAGE: Final = ROOT / "docs" / "spark-stateful.md"
HOUR: Final = "timestamp_seconds(1767225600 + 3600 * cast(split(cast(body as string), ' ')[0] as double))"
DEADLINE_S: Final = 900.0
STARTS_MAX: Final = 10
NUMBERS: Final = itertools.count()


class Forgetful(FirstMessages):
    """The processor without its state."""

    def handleInputRows(self, key: tuple[str, str], rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self._forwarded.clear()
        yield from super().handleInputRows(key, rows, timerValues)


class Hoarder(FirstMessages):
    """The processor without its timers."""

    def handleExpiredTimer(self, key: tuple[str, str], timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        return iter(())


def first_messages_on_time(stream: DataFrame) -> DataFrame:
    """Return the first messages by a query that keeps the column of the watermark."""
    rows = stream.withWatermark("storeTime", deduplicate.LATENESS)
    rows = rows.withColumns({"storedMs": unix_millis("storeTime"), "group": col("keys"), "place": expr("''")})
    return rows.groupBy("group", "place").transformWithState(FirstMessages(), OUTPUT, "Append", "EventTime")


@final
class Trial:
    """A topic, and the query that forwards its first messages into Parquet files."""

    def __init__(self, spark: SparkSession, brokers: Group, folder: Path) -> None:
        self.topic = new_topic(brokers, 1)
        self._spark = spark
        self._name_server = brokers.name_server
        self._folder = folder

    def send(self, *sent: tuple[float, str], note: str = "") -> None:
        """Send a message for each hour and key."""
        with Producer(self._name_server) as producer:
            for hour, key in sent:
                body = f"{hour} {key}{note}".encode()
                producer.send(Message(self.topic, body, keys=(key,) if key else (), tags="red", properties={"n": key}))

    def run(self, query: Any = first_messages) -> int:
        """Process what was sent, and return the number of keys in the state."""
        stream = (
            self._spark.readStream.format("rocketmq")
            .options(nameServers=self._name_server, subscribe=self.topic, startingOffsets="earliest")
            .options(columns=deduplicate.INPUT)
            .load()
            .withColumn("storeTime", expr(HOUR))
        )
        writer = query(stream).writeStream.format("parquet").option("checkpointLocation", str(self._folder / "state"))
        for attempt in range(STARTS_MAX):
            running = writer.trigger(availableNow=True).start(str(self._folder / "rows"))
            try:
                assert running.awaitTermination(DEADLINE_S)
                break
            except StreamingQueryException as error:  # Spark waits for 10 s for a process: a busy machine needs longer
                if "connect back" not in str(error) or attempt == STARTS_MAX - 1:
                    raise
        last = running.lastProgress
        assert last is not None
        return int(last["stateOperators"][0]["numRowsTotal"])

    def forwarded(self) -> list[str]:
        """Return the bodies of the forwarded messages, sorted."""
        rows = self._spark.read.parquet(str(self._folder / "rows")).collect()
        assert all(row.tags == "red" and row.properties["n"] == (row.keys or "") for row in rows)
        return sorted(bytes(row.body).decode() for row in rows)


def new_topic(brokers: Group, queues: int) -> str:
    """Create a topic for a single test."""
    topic = f"stateful-{next(NUMBERS)}"
    with Admin(brokers.name_server) as admin:
        admin.wait(admin.topics.create(topic, queues=queues))
    return topic


@pytest.fixture
def trial(spark: SparkSession, brokers: Group, tmp_path: Path) -> Iterator[Trial]:
    """A trial in the session of all tests, which has the settings of the sample for this time."""
    for module in (deduplicate, sys.modules[__name__]):  # workers cannot import these modules
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    settings = STATE_STORE | {"spark.sql.shuffle.partitions": "2"}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield Trial(spark, brokers, tmp_path)
    for name, usual in before.items():
        if usual is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, usual)


def test_first_message_of_each_key_is_forwarded(trial: Trial) -> None:
    """Resends in the same batch, in a later one and after a restart are duplicates; messages without keys are not."""
    trial.send((0, "a"), (1, "b"), (0.5, ""))
    trial.send((2, "a"), (0.5, ""), note=" again")
    trial.run()
    trial.send((3, "a"), (23.9, "b"), (23.9, "c"), note=" later")
    trial.run()

    assert trial.forwarded() == ["0 a", "0.5 ", "0.5  again", "1 b", "23.9 c later"]


def test_duplicates_are_forwarded_without_state(trial: Trial) -> None:
    """The check can fail: without the state a resend in a later batch is forwarded."""
    trial.send((0, "a"))
    trial.run()
    trial.send((3, "a"), note=" later")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicate, "FirstMessages", Forgetful)
        trial.run()

    assert trial.forwarded() == ["0 a", "3 a later"]


def test_key_is_new_after_its_day(trial: Trial) -> None:
    """A key is forwarded again a day after its forwarded message, also if its state was not deleted before."""
    trial.send((0, "a"), (0, "b"), (23.9, "a"), (24, "a"), (47.9, "a"))
    trial.run()
    trial.send((48, "a"), (48, "b"), (71.9, "a"), (71.9, "b"))
    trial.run()

    assert trial.forwarded() == ["0 a", "0 b", "24 a", "48 a", "48 b"]


def days(trial: Trial, query: Any = first_messages) -> list[int]:
    """Send other keys on each of four days, and return the sizes of the state."""
    sizes: list[int] = []
    for day in range(4):
        trial.send(*((24.0 * day + number, f"{day}-{number}") for number in range(20)))
        sizes.append(trial.run(query))
    trial.send((24.0 * 9, "last"))
    return [*sizes, trial.run(query)]


def test_state_has_the_keys_of_a_day(trial: Trial) -> None:
    """Keys of earlier days are deleted: the size does not depend on the number of days, and goes down to one key."""
    *sizes, last = days(trial)

    assert sizes[0] == 20 and max(sizes) <= 40 and last == 1, (sizes, last)
    assert len(trial.forwarded()) == 81


def test_state_grows_without_timers(trial: Trial) -> None:
    """The check can fail: without the timers the state keeps the keys of all days."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicate, "FirstMessages", Hoarder)
        assert days(trial)[-1] == 81


def send_late(trial: Trial, query: Any) -> list[str]:
    """Send messages that are days late, and return what the query forwards."""
    trial.send((0, "a"), (240, "b"))
    trial.run(query)
    trial.send((1, "late"), (2, "late"), (239, "b"), (200, "b"), note=" late")
    trial.run(query)
    return trial.forwarded()


def test_late_messages_are_not_lost(trial: Trial) -> None:
    """A late message is forwarded if it has no duplicate in its day. The state of a later day does not change."""
    found = send_late(trial, first_messages)

    assert found == ["0 a", "1 late late", "200 b late", "240 b"]
    trial.send((263, "b"))
    trial.run()
    assert trial.forwarded() == found


def test_late_messages_are_lost_with_the_column_of_the_watermark(trial: Trial) -> None:
    """The check can fail: Spark drops late rows that have this column."""
    assert send_late(trial, first_messages_on_time) == ["0 a", "240 b"]


def test_page_shows_the_code_of_the_sample() -> None:
    """Each Python block of the page is a part of the sample."""
    blocks = re.findall(r"```python.*?\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert blocks and all(block in SAMPLE.read_text() for block in blocks)


def copy_sample(folder: Path, changes: dict[str, str]) -> Path:
    """Copy the program, with batches of 120 messages, with tasks one after another, and with other changes."""
    text = SAMPLE.read_text()
    usual = {
        'startingOffsets="earliest"': 'startingOffsets="earliest", maxRowsPerTrigger="120"',
        'spark_session("deduplicate",': 'spark_session("deduplicate", cores=1,',
    }
    for old, new in {**usual, **changes}.items():
        assert old in text
        text = text.replace(old, new)
    program = folder / "program.py"
    program.write_text(text)
    return program


def is_inside_second_batch(checkpoint: Path) -> bool:
    """Return whether the second batch is planned, and not committed."""
    return (checkpoint / "offsets" / "1").exists() and not (checkpoint / "commits" / "1").exists()


def has_written_rows(checkpoint: Path) -> bool:
    """Return whether two tasks of the second batch have stored their state: the first of them has written its rows."""
    return len({path.parent for path in checkpoint.glob("state/0/*/2*") if path.suffix in (".changelog", ".zip")}) > 1


def run_program(command: list[str], folder: Path, ends: Callable[[int | None], bool]) -> bool:
    """Run the program until the condition holds for its exit code, or the program ends; return whether it holds."""
    with (folder / "log").open("ab") as output:
        run = Session(command, spark_environment(), folder, output)
    poll = run.process.poll
    try:
        wait_until(lambda: ends(poll()) or poll() is not None, DEADLINE_S, "the program ends")
    finally:
        run.kill()
    return ends(run.process.returncode)


def run_killed(program: Path, brokers: Group, when: Callable[[Path], bool], source: str, target: str) -> list[str]:
    """Kill the program in its second batch, run it again, and return the bodies that a consumer reads.

    A busy machine may make Spark end early: the program is started again.
    """
    folder = program.parent
    checkpoint, log = folder / "checkpoint", folder / "log"
    command = [sys.executable, str(program), "--name-servers", brokers.name_server, "--from", source, "--to", target]
    command += ["--checkpoint", str(checkpoint), "--once"]

    send(brokers, source, [*range(60)] * 2 + [*range(120)])
    assert any(run_program(command, folder, lambda code: when(checkpoint)) for _ in range(STARTS_MAX)), log.read_text()
    assert is_inside_second_batch(checkpoint), "the batch ended before the kill"

    send(brokers, source, [*range(130)])
    assert any(run_program(command, folder, lambda code: code == 0) for _ in range(STARTS_MAX)), log.read_text()
    return sorted(message.body.decode() for message in messages(brokers, target))


def send(brokers: Group, topic: str, numbers: list[int]) -> None:
    """Send messages to two queues in turn; their bodies count the sends of each key."""
    counts = Counter(one.keys[0] for one in messages(brokers, topic))
    with Producer(brokers.name_server) as producer:
        queues = producer.queues(topic)
        for position, number in enumerate(numbers):
            counts[f"k{number}"] += 1
            body = f"k{number} {counts[f'k{number}']}".encode()
            producer.send(Message(topic, body, keys=(f"k{number}",)), queue=queues[position % 2])


FIRST: Final = sorted(f"k{number} 1" for number in range(130))


@pytest.mark.parametrize("when", [is_inside_second_batch, has_written_rows])
def test_killed_program_forwards_each_key_once(when: Callable[[Path], bool], brokers: Group, tmp_path: Path) -> None:
    """Driver and workers are killed in a batch, also after a task wrote its rows; the restart repeats the batch."""
    source, target = new_topic(brokers, 2), new_topic(brokers, 2)

    assert run_killed(copy_sample(tmp_path, {}), brokers, when, source, target) == FIRST


@pytest.mark.parametrize(
    "changes",
    [{'transactional="true"': 'transactional="false"'}, {"self._forwarded.update(": "id("}],
    ids=["at-least-once", "no-state"],
)
def test_kill_causes_duplicates_without_a_guard(changes: dict[str, str], brokers: Group, tmp_path: Path) -> None:
    """The check can fail: with a sink that delivers at least once, or without state, duplicates come out."""
    source, target = new_topic(brokers, 2), new_topic(brokers, 2)
    found = run_killed(copy_sample(tmp_path, changes), brokers, has_written_rows, source, target)

    assert set(FIRST) <= set(found) and len(found) > len(FIRST)
