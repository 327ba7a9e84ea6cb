"""An archive that the shipped job publishes to tables, with real brokers and Spark; its driver is killed with SIGKILL.

Each run gets new messages, and is killed at a crash point of the driver or some time after it has taken the lock. The
log is what an ordinary consumer reads from the brokers."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exactly_once.job_process import JobProcess
from spark_kit.listings import RowCounts
from spark_kit.processes import Group
from spark_kit.table_trial import row_faults, rows_of_tables

from gantry_client.sync import PullConsumer
from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.layout import WRITER
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.tables.publication import root_of

DAY_MS: Final = 24 * 3_600_000
RUN_TIMEOUT_S: Final = 1800.0
TAKEOVER_S: Final = 3.0
MOMENT: Final = "random moment"
BATCH_POINTS: Final = (
    crash_points.BEFORE_RECORD,
    crash_points.AFTER_RECORD,
    crash_points.MID_BATCH,
    crash_points.AFTER_BATCH,
    crash_points.BEFORE_TABLE,
    crash_points.AFTER_TABLE,
)
COMPACTION_POINTS: Final = (
    crash_points.MID_MERGE,
    crash_points.AFTER_MERGE,
    crash_points.AFTER_EXCHANGE,
    crash_points.MID_DELETION,
)
MESSAGES: Final = (100, 300)
"""The least and the most messages that a run finds."""

LONG_TIMEOUTS: Final = {
    "spark.python.authenticate.socketTimeout": "10m",
    "spark.network.timeout": "30m",
    "spark.executor.heartbeatInterval": "5m",
}
"""On a machine with busy cores a Python worker may need minutes to start."""


@dataclass
class DriverTrial:
    """One archive of one topic."""

    folder: Path
    group: Group
    topic: str
    draw: random.Random
    destination: str = ""
    """Address in an object store; empty: the archive is in `folder`."""
    runs: int = field(default=0, init=False)
    _process: JobProcess | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return self.destination or str(self.folder / "archive")

    def kill(self) -> tuple[str, list[str]]:
        """Run the job until one run was killed; return where (empty: it failed before), and what was wrong."""
        while True:
            point = self.draw.choice((*BATCH_POINTS, *self._compaction_points(), MOMENT, MOMENT))
            self.group.send(self.draw.randint(*MESSAGES), topic=self.topic, queues=2)
            kills_before = self._recorded_kills()
            times = self.draw.randint(1, 2)
            process = self._start([] if point == MOMENT else ["--driver", f"{point}:{times}"], point)
            try:
                is_killed = point == MOMENT and self._kill_at_a_moment(process)
                code = process.wait(RUN_TIMEOUT_S)
            finally:
                process.kill_rest()
            if is_killed or self._recorded_kills() > kills_before:
                return point, self.faults(None)
            if code:
                return "", [f"the job ended with {code}: {process.tail()}"]

    def finish(self) -> list[str]:
        """Run the job to its end; return what is wrong."""
        self.group.send(self.draw.randint(*MESSAGES), topic=self.topic, queues=2)
        process = self._start([], "")
        try:
            code = process.wait(RUN_TIMEOUT_S)
        finally:
            process.kill_rest()
        return [f"the last run ended with {code}: {process.tail()}"] if code else []

    def stop(self) -> None:
        """End the present run at once; another thread calls this."""
        if self._process is not None:
            self._process.kill_rest()

    def faults(self, wanted: RowCounts | None) -> list[str]:
        """Return what readers of the tables find that is not in the log, twice, or (`wanted`) missing."""
        known = self.log() if wanted is None else wanted
        found: list[str] = []
        for name, (seen, faults) in rows_of_tables([root_of(storage_of(self.address), self.topic)]).items():
            found += [*faults, *(f"{name}: {fault}" for fault in row_faults(seen, wanted, known))]
        return found

    def log(self) -> RowCounts:
        """Read all messages of the topic with an ordinary consumer."""
        found: RowCounts = Counter()
        with PullConsumer(self.group.name_server, "TableKillsTruth") as consumer:
            for queue in consumer.queues(self.topic):
                offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
                while offset < end:
                    result = consumer.fetch(queue, offset, messages_max=256)
                    for one in result.messages:
                        row = (self.topic, queue.broker_name, queue.queue_id, one.queue_offset, one.body)
                        found[row] += 1
                    offset = result.next_offset
        return found

    # -- one run -------------------------------------------------------------------------------------------------------

    def _compaction_points(self) -> tuple[str, ...]:
        """Return the points of a compaction, for an archive with files to merge in a folder."""
        if self.destination or not self.runs:
            return ()
        files = Counter(file.range.queue for file in read_manifest(storage_of(self.address)).data())
        return COMPACTION_POINTS if any(count > 1 for count in files.values()) else ()

    def _start(self, words: list[str], point: str) -> JobProcess:
        self.runs += 1
        os.makedirs(self.folder, exist_ok=True)
        document = {
            "topics": {"include": [self.topic]},
            "limits": {"maxRowsPerTrigger": self.draw.choice((50, 150, 1000))},
            "layout": {"rowsPerFile": 1000, "compactAfter": "0s"},
            "engine": {"cores": 1, "sparkConf": LONG_TIMEOUTS | {"spark.local.dir": str(self.folder / "spark")}},
            "tables": {"formats": ["iceberg", "delta"], "snapshotAge": self.draw.choice(("0s", "24h"))},
            "runtime": {
                "nameServers": [self.group.name_server], "sidecars": list(self.group.sidecar_urls[:1]),
                "destination": self.address, "checkpoint": str(self.folder / "checkpoint"), "once": True,
            },
        }  # fmt: skip
        path = self.folder / "archive.json"
        path.write_text(json.dumps(document))
        given = ["--conf", str(path), "--takeover", str(TAKEOVER_S), *words]
        if point in COMPACTION_POINTS:
            given += ["--now", str(int(time.time() * 1000) + 3 * DAY_MS)]
        self._process = JobProcess(given, self.folder / "archive.log", self._kills_file)
        return self._process

    def _kill_at_a_moment(self, process: JobProcess) -> bool:
        """Kill the driver, or all its processes, some time after it has taken the lock."""
        storage = storage_of(self.address)

        def has_lock() -> bool:
            try:
                return bool(json.loads(storage.read(WRITER))["process"] == process.pid)
            except (OSError, ValueError, KeyError):
                return False

        if not process.until(has_lock, RUN_TIMEOUT_S):
            return False
        deadline = time.monotonic() + self.draw.uniform(0, 20)
        process.until(lambda: time.monotonic() > deadline, RUN_TIMEOUT_S)
        if process.is_over():
            return False
        if self.draw.random() < 0.5:
            process.kill_driver()
        else:
            process.kill_all()
        return True

    @property
    def _kills_file(self) -> Path:
        return self.folder / "kills"

    def _recorded_kills(self) -> int:
        return len(self._kills_file.read_text().split()) if self._kills_file.exists() else 0
