"""A catalog of one Iceberg table without a server: a folder has the table's versions, as in Hadoop tables.

    <location>/metadata/v7.metadata.json     the version 7 of the table; the highest number is the newest version
    <location>/metadata/version-hint.text    the number of a recent version, for readers that do not list the folder
    <location>/metadata/snap-*.avro, *.avro  manifest lists and manifests, which versions refer to

A commit makes the manifests durable, then creates the next version durably, then replaces the hint. The version exists
completely or not at all, and never replaces another one. After a kill before the hint is replaced, the next load finds
the newest version in the folder and corrects the hint. In an object store the writer of the archive is the only one
that commits, so a check before the upload takes the place of exclusive creation."""

import io
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from pyarrow import fs
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from gantry_remoting.durable_files import make_folders, replace_file, sync_folder

if TYPE_CHECKING:
    import pyarrow as pa

HINT: Final = "version-hint.text"
"""The file with the number of a recent version."""

_VERSION: Final = re.compile(r"v(\d+)\.metadata\.json")


class _SyncedStream(io.BufferedWriter):
    """A new local file that is durable when it has been closed."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        super().__init__(io.FileIO(path, "w" if overwrite else "x"))
        self._folder: Final = path.parent

    def close(self) -> None:
        """Sync the file and its name."""
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        sync_folder(self._folder)


class _DurableFile(PyArrowFile):
    """A file of a local folder, which is written durably."""

    def __init__(self, location: str, path: str, system: fs.FileSystem) -> None:
        super().__init__(location, path, system)
        self._local: Final = Path(path)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Open the file for writing. Raises FileExistsError."""
        make_folders(self._local.parent)
        return _SyncedStream(self._local, overwrite=overwrite)


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's files by pyarrow, except that a local file is durable when it has been closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(location, path, self.fs_by_scheme(scheme, netloc))


@final
class MetadataFolder:
    """The folder `metadata` of a table, in a file system or an object store."""

    def __init__(self, files: PyArrowFileIO, location: str) -> None:
        self.address: Final = f"{location}/metadata"
        scheme, netloc, self._path = files.parse_location(self.address)
        self._system: Final[fs.FileSystem] = files.fs_by_scheme(scheme, netloc)
        self._is_local: Final = scheme == "file"

    def files(self) -> list[fs.FileInfo]:
        """Return the files; none if the folder does not exist."""
        found = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return [one for one in found if one.type is fs.FileType.File]

    def read(self, name: str) -> bytes | None:
        """Read a small file; None if it does not exist."""
        try:
            with self._system.open_input_file(f"{self._path}/{name}") as file:
                return bytes(file.readall())
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes) -> None:
        """Create a file atomically and durably. Raises FileExistsError."""
        if not self._is_local:
            [info] = self._system.get_file_info([f"{self._path}/{name}"])
            if info.type is not fs.FileType.NotFound:
                raise FileExistsError(f"{self.address}/{name} exists")
            self.replace(name, data)
            return
        target = Path(self._path, name)
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            replace_file(temporary, data)
            os.link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file atomically and durably; it may replace another."""
        if self._is_local:
            replace_file(Path(self._path, name), data)
            return
        with self._system.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(data)

    def remove(self, name: str) -> None:
        """Delete a file, which exists."""
        self._system.delete_file(f"{self._path}/{name}")


@final
class FolderCatalog(NoopCatalog):
    """The catalog of the table at one location. It has what a writer needs; other operations of pyiceberg's catalogs
    raise NotImplementedError."""

    def __init__(self, location: str, files: PyArrowFileIO, *, is_read_only: bool = False) -> None:
        super().__init__("folder")
        self._is_read_only: Final = is_read_only
        self._location: Final = location
        self._files: Final = files
        self._folder: Final = MetadataFolder(files, location)
        self._loaded: Table | None = None

    def create_table(
        self,
        identifier: str | Identifier,
        schema: "Schema | pa.Schema",
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create the table as version 1. Raises TableAlreadyExistsError."""
        assert location == self._location and isinstance(schema, Schema), "a folder has one table, with field ids"
        if self._newest():
            raise TableAlreadyExistsError(f"{self._location} already has a table")
        metadata = new_table_metadata(schema, partition_spec, sort_order, self._location, dict(properties))
        self._write(1, metadata)
        return self.load_table(identifier)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load the newest version, and correct the hint after a kill unless read-only. Raises NoSuchTableError."""
        version = self._newest()
        if not version:
            raise NoSuchTableError(f"{self._location} has no table")
        address = self._address(version)
        if self._loaded is None or self._loaded.metadata_location != address:
            metadata = FromInputFile.table_metadata(self._files.new_input(address))
            names = self.identifier_to_tuple(identifier)
            self._loaded = Table(names, metadata, address, self._files, self)
            if not self._is_read_only:
                self._correct_hint(version)
        return Table(self._loaded.name(), self._loaded.metadata, address, self._files, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the next version. Raises CommitFailedException if another writer has changed the table."""
        present = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(present.metadata)
        metadata = update_table_metadata(present.metadata, updates, metadata_location=present.metadata_location)
        address = present.metadata_location
        if metadata != present.metadata:
            version = _version_of(address) + 1
            address = self._address(version)
            self._write(version, metadata)
            self._loaded = Table(table.name(), metadata, address, self._files, self)
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=address)

    def drop_table(self, identifier: str | Identifier) -> None:
        """Delete the versions, the oldest first, and the hint; a kill leaves the newest version, so the whole table."""
        for version in sorted(_version_of(info.base_name) for info in self._folder.files()):
            if version:
                self._folder.remove(f"v{version}.metadata.json")
        if self._folder.read(HINT) is not None:
            self._folder.remove(HINT)
        self._loaded = None

    def _newest(self) -> int:
        """Return the number of the newest version; 0 if there is none."""
        return max((_version_of(info.base_name) for info in self._folder.files()), default=0)

    def _address(self, version: int) -> str:
        return f"{self._folder.address}/v{version}.metadata.json"

    def _write(self, version: int, metadata: TableMetadata) -> None:
        """Create a version, then the hint; a failure after the first leaves the table changed."""
        data = metadata.model_dump_json(exclude_none=True).encode()
        try:
            self._folder.create(f"v{version}.metadata.json", data)
        except FileExistsError as error:
            raise CommitFailedException(f"another process has written version {version} of {self._location}") from error
        self._folder.replace(HINT, str(version).encode())

    def _correct_hint(self, version: int) -> None:
        wanted = str(version).encode()
        if self._folder.read(HINT) != wanted:
            self._folder.replace(HINT, wanted)


def _version_of(path: str) -> int:
    """Return the number of the version in a file; 0 if it has none."""
    matched = _VERSION.fullmatch(path.rpartition("/")[2])
    return int(matched[1]) if matched else 0
