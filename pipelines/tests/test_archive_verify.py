"""The findings of `verify`: it finds every injected fault and names the file, and has no findings in a good archive."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from spark_kit.toy_archive import archive_log
from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive.manifest_reader import ManifestReader
from gantry_pipelines.archive.storage import Storage
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.archive.verify_job import VerifyJob, VerifyParameters
from gantry_pipelines.outcome import EXIT_FAILED, EXIT_INTERRUPTED
from gantry_pipelines.reporting import Output, Reporter
from gantry_pipelines.stop_request import StopRequest
from pyspark_rocketmq.model import QueueId

QUEUE, OTHER = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
LOG = ToyLog({QUEUE: 250, OTHER: 100})


def data_file(root: Path, number: int = 0) -> Path:
    return sorted(root.glob("data/*/*/*.parquet"))[number]


def record_file(root: Path, number: int = 0) -> Path:
    return sorted(root.glob("_manifest/records/*/*.json"))[number]


def flip_bit(root: Path) -> None:
    content = bytearray(data_file(root).read_bytes())
    content[len(content) // 3] ^= 1
    data_file(root).write_bytes(content)


def truncate_file(root: Path) -> None:
    data_file(root).write_bytes(data_file(root).read_bytes()[:-10])


def delete_file(root: Path) -> None:
    data_file(root).unlink()


def add_file(root: Path) -> None:
    (data_file(root).parent / "copy.parquet").write_bytes(data_file(root).read_bytes())


def swap_files(root: Path) -> None:
    """Swap two files and their records: only the metadata in the files reveals it."""
    one, other = data_file(root, 0), data_file(root, 1)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    pages = {number: json.loads(record_file(root, number).read_text()) for number in (0, 1)}
    for number in (0, 1):
        own, other_file = pages[number]["files"][0], pages[1 - number]["files"][0]
        changed = {**own, "bytes": other_file["bytes"], "checksum": other_file["checksum"]}
        record_file(root, number).write_text(json.dumps({**pages[number], "files": [changed]}))


def delete_file_and_record(root: Path) -> None:
    record_file(root, 1).unlink()
    data_file(root, 1).unlink()


def add_overlapping_record(root: Path) -> None:
    """Add a record whose range overlaps another's."""
    page = json.loads(record_file(root, 1).read_text())
    page["files"][0]["begin"] -= 50
    page["files"][0]["rows"] += 50
    (record_file(root).parent / "another.json").write_text(json.dumps(page))


def remove_row(root: Path) -> None:
    """Remove a row from a file and adapt its size in the manifest: unless bytes are read, only its rows reveal it."""
    path = data_file(root)
    with pq.ParquetFile(path) as parquet:
        table, metadata = parquet.read(), dict(parquet.metadata.metadata or {})
    pq.write_table(table.slice(1).replace_schema_metadata(metadata), path)
    page = json.loads(record_file(root).read_text())
    page["files"][0]["bytes"] = path.stat().st_size
    record_file(root).write_text(json.dumps(page))


@pytest.mark.parametrize(
    ("inject", "is_deep", "text"),
    [
        (flip_bit, True, "checksum of the manifest"),
        (truncate_file, False, "bytes, the manifest has"),
        (delete_file, False, "is missing"),
        (add_file, False, "is not in the manifest"),
        (swap_files, False, "another range in its metadata"),
        (delete_file_and_record, False, "[100, 200) is missing"),
        (add_overlapping_record, False, "is archived twice"),
        (remove_row, False, "99 rows"),
    ],
    ids=["flip-bit", "truncate-file", "delete-file", "add-file", "swap-files", "delete-both", "overlap", "remove-row"],
)
def test_injected_fault_is_found(tmp_path: Path, inject: Callable[[Path], None], is_deep: bool, text: str) -> None:
    """Each fault alone is found and named; without it there are no findings."""
    storage = archive_log(LOG, tmp_path)
    before = verify(storage, is_deep=True)

    inject(tmp_path)

    assert before.findings == () and before.rows == 350
    assert any(text in str(finding) for finding in verify(storage, is_deep=is_deep).findings)


def test_flipped_bit_is_found_by_deep_verification_only(tmp_path: Path) -> None:
    """Without `deep` the bytes are not read, so a flipped bit in the middle of a file is not found."""
    storage = archive_log(LOG, tmp_path)

    flip_bit(tmp_path)

    assert verify(storage).findings == ()
    assert len(verify(storage, is_deep=True).findings) == 1


class StoppingTerminal(io.StringIO):
    """A stream of progress lines that requests a stop with the first line."""

    def __init__(self, stop: StopRequest) -> None:
        super().__init__()
        self._stop: Final = stop

    def write(self, text: str) -> int:
        self._stop.request()
        return super().write(text)


@pytest.mark.parametrize(
    ("inject", "exit_code", "reason"),
    [(None, EXIT_INTERRUPTED, "Interrupted"), (delete_file, EXIT_FAILED, "Damaged")],
    ids=["no findings", "a finding"],
)
def test_verification_ends_after_the_current_file_when_stopped(
    tmp_path: Path, inject: Callable[[Path], None] | None, exit_code: int, reason: str
) -> None:
    """A stop request ends the run after the current file with 130, or with 1 if a fault was found before."""
    archive_log(LOG, tmp_path)
    if inject is not None:
        inject(tmp_path)
    stop = StopRequest()
    reporter = Reporter("verify", stop, Output(lines=StoppingTerminal(stop)))

    outcome = VerifyJob().run(VerifyParameters(str(tmp_path)), reporter)

    assert (outcome.exit_code, outcome.reason, outcome.files) == (exit_code, reason, 1)
    assert outcome.text.startswith("stopped before the last file; 1 files, 100 rows")
    assert VerifyJob().run(VerifyParameters(str(tmp_path)), Reporter("verify")).files == 4


class PublishingStorage:
    """A folder whose writer publishes a staged file as soon as the size of the file at the path `seen` was read."""

    def __init__(self, folder: Storage, staged: str, path: str, seen: str) -> None:
        self._folder: Final = folder
        self._staged, self._path, self._seen = staged, path, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def size(self, path: str) -> int | None:
        found = self._folder.size(path)
        if path == self._seen and self._folder.size(self._staged) is not None:
            self._folder.publish(self._staged, self._path)
        return found


@pytest.mark.parametrize("is_staged_seen", [False, True], ids=["before the staged path", "before it is opened"])
@pytest.mark.parametrize("is_deep", [False, True], ids=["shallow", "deep"])
def test_file_that_is_published_meanwhile_is_no_finding(tmp_path: Path, is_staged_seen: bool, is_deep: bool) -> None:
    """A file that its writer publishes during the verification is not missing; one that is nowhere is."""
    folder = archive_log(LOG, tmp_path)
    file = ManifestReader(folder).read().data()[0]
    staged, published = tmp_path / file.staged, tmp_path / file.place.path

    staged.parent.mkdir(exist_ok=True)
    published.rename(staged)
    seen = file.staged if is_staged_seen else file.place.path
    storage: Any = PublishingStorage(folder, file.staged, file.place.path, seen)

    assert verify(storage, is_deep=is_deep).findings == ()
    assert published.exists() and not staged.exists(), "the file was not published during the verification"
    published.unlink()
    assert [str(finding) for finding in verify(folder).findings] == [f"{file.place.path}: is missing"]
