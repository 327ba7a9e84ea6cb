"""The short form of `make exactly-once`, and a restore: real brokers, the source's readers, three kills, no JVM."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from spark_kit.listings import READERS
from spark_kit.mini_spark import Query
from spark_kit.object_store import KEYS, ObjectStore
from spark_kit.processes import Group, group

from gantry_client.sync import Admin, PullConsumer
from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.restore_job import RestoreJob, RestoreSpec
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.config import config_of
from gantry_pipelines.reporting import Reporter

MESSAGES = 2000


@pytest.mark.verify
def test_archive_of_two_thousand_messages_survives_three_kills(brokers: Group, tmp_path: Path) -> None:
    """Every reader sees every acknowledged message once, after kills of a worker and of the driver at crash points."""
    sent = brokers.send(MESSAGES // 2, topic="slice")
    kills = tmp_path / "kills"
    wanted = Counter(("slice", "broker-a", one.queue, one.offset, one.body) for one in sent)

    def run_query(rows_max: int, driver: str = "", worker: str = "") -> int:
        options = {
            "nameServers": brokers.name_server,
            "sidecars": ",".join(brokers.sidecar_urls[:1]),
            "subscribe": "slice",
            "startingOffsets": "earliest",
            "maxRowsPerTrigger": str(rows_max),
            "archive.cores": "1",
            "archive.destination": str(tmp_path / "archive"),
        }
        query = Query(
            options, str(tmp_path / "checkpoint"), ArchiveFormat(200), driver, worker, {"GANTRY_KILLS": str(kills)}
        )
        return query.run_process()

    codes = [
        run_query(500, worker=f"{crash_points.AFTER_DATA}:2"),
        run_query(400, driver=f"{crash_points.AFTER_RECORD}:3"),
    ]
    sent = brokers.send(MESSAGES // 2, topic="slice")
    wanted += Counter(("slice", "broker-a", one.queue, one.offset, one.body) for one in sent)
    codes.append(run_query(600, driver=f"{crash_points.BEFORE_RECORD}:1"))
    seen = {name: read(tmp_path / "archive") for name, read in READERS.items()}
    codes.append(run_query(2000))

    assert codes == [1, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert kills.read_text().split() == [crash_points.AFTER_DATA, crash_points.AFTER_RECORD, crash_points.BEFORE_RECORD]
    assert all(rows <= wanted for rows in seen.values()), "after a kill a reader sees a duplicate or an unknown row"
    assert {name: read(tmp_path / "archive") == wanted for name, read in READERS.items()} == dict.fromkeys(
        READERS, True
    )
    assert verify(Folder(str(tmp_path / "archive")), is_deep=True).findings == ()


@pytest.mark.verify
def test_archive_is_restored_to_a_real_broker(brokers: Group, tmp_path: Path) -> None:
    """The target topic has the same messages, in order by queue, with keys, tags and ids; a second run sends none."""
    sent = brokers.send(600, topic="gone", queues=3)
    options = {"subscribe": "gone", "startingOffsets": "earliest", "archive.destination": str(tmp_path / "archive")}
    options |= {
        "nameServers": brokers.name_server,
        "sidecars": ",".join(brokers.sidecar_urls[:1]),
        "archive.cores": "1",
    }
    exit_code = Query(options, str(tmp_path / "checkpoint"), ArchiveFormat(100)).run_process()
    runtime = {"nameServers": [brokers.name_server], "destination": str(tmp_path / "archive")}
    document = {"runtime": runtime, "restore": {"topics": {"gone": "back"}}}
    job, reporter = RestoreJob(), Reporter("restore")

    with Admin(brokers.name_server) as admin:
        admin.wait(admin.topics.create("back"))
    settings = job.parse(config_of(document, RestoreSpec))
    first, second = job.run(settings, reporter), job.run(settings, reporter)

    assert exit_code == 0 and (first.rows, second.rows) == (600, 0)
    found = []
    with PullConsumer(brokers.name_server, "looker") as consumer:
        for queue in consumer.queues("back"):
            offset, end = 0, consumer.max_offset(queue)
            while offset < end:
                result = consumer.fetch(queue, offset)
                found += [(queue.queue_id, one.body, one.tags, one.keys, one.message_id) for one in result.messages]
                offset = result.next_offset
    numbers = {one.key: int(one.key.removeprefix("key-")) for one in sent}
    wanted = [(one.queue, one.body, one.tags, (one.key,), f"{numbers[one.key]:032X}") for one in sent]
    for number in range(4):
        assert [row for row in found if row[0] == number] == [row for row in wanted if row[0] == number]


def messages_of(name_server: str, topic: str) -> list[tuple[int, bytes, str]]:
    """Return queue, body and tags of all messages of a topic, by queue and offset."""
    found = []
    with PullConsumer(name_server, "looker") as consumer:
        for queue in consumer.queues(topic):
            offset, end = 0, consumer.max_offset(queue)
            while offset < end:
                result = consumer.fetch(queue, offset)
                found += [(queue.queue_id, one.body, one.tags or "") for one in result.messages]
                offset = result.next_offset
    return sorted(found, key=lambda one: one[0])


@pytest.mark.verify
@pytest.mark.needs_object_store
def test_lost_group_is_restored_from_its_archive_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All brokers and their disks are gone. A new group gets every archived message of every topic, in its queue."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    store = ObjectStore(tmp_path / "objects")
    store.start()
    try:
        destination = store.address("lost")
        with group(tmp_path / "first") as lost:
            for topic, count, queues in (("orders", 600, 4), ("bills", 90, 2)):
                lost.send(count, topic=topic, queues=queues)
            before = {topic: messages_of(lost.name_server, topic) for topic in ("orders", "bills")}
            options = {
                "subscribePattern": "orders|bills",
                "startingOffsets": "earliest",
                "archive.destination": destination,
                "nameServers": lost.name_server,
                "sidecars": ",".join(lost.sidecar_urls[:1]),
                "archive.cores": "1",
            }
            query = Query(options, str(tmp_path / "checkpoint"), ArchiveFormat(100), environment=KEYS)
            assert query.run_process() == 0
        with group(tmp_path / "second") as new:
            runtime = {"nameServers": [new.name_server], "destination": destination}
            restore = {"intoNewGroup": True, "progress": str(tmp_path / "progress")}
            job = RestoreJob()
            settings = job.parse(config_of({"runtime": runtime, "restore": restore}, RestoreSpec))
            first, second = job.run(settings, Reporter("restore")), job.run(settings, Reporter("restore"))

            assert (first.rows, second.rows) == (690, 0)
            assert {topic: messages_of(new.name_server, topic) for topic in before} == before
    finally:
        store.kill()
