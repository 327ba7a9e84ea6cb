"""An archive's storage in an object store (S3 or compatible), by pyarrow's client.

An object becomes visible when its upload completes, as a whole. There is no rename, so a file is visible before it is
in the manifest; its name has its range, so a repeated batch writes the same rows under the same name. Days are not
compacted here.

    s3://bucket/prefix?endpoint_override=http://127.0.0.1:9000&region=eu-west-1

Keys come from the environment or the machine's role, as for other AWS clients (`AWS_ACCESS_KEY_ID`, ...).
"""

import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from gantry_pipelines.archive.errors import BadDestination
from gantry_pipelines.archive.layout import STAGED_SUFFIX
from gantry_pipelines.archive.storage import Folder, Storage


def storage_of(destination: str) -> Storage:
    """Return the storage at a destination: a path, `file:///path`, or the address of an object store."""
    if "://" not in destination:
        return Folder(str(Path(destination).absolute()))
    if destination.startswith("file://"):
        return Folder(urlsplit(destination).path)
    return ObjectStorage(destination)


@lru_cache(maxsize=8)
def _open_file_system(address: str) -> tuple[fs.FileSystem, str]:
    try:
        system, prefix = fs.FileSystem.from_uri(address)
    except (ValueError, NotImplementedError) as error:
        raise BadDestination(f"{address} is not a valid destination: {error}") from error
    return system, prefix.rstrip("/")


@final
@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """Storage in a bucket, or below a prefix of a bucket."""

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def is_folder(self) -> bool:
        """False: an object store has no rename, links or exchange."""
        return False

    def paths(self, folder: str = "") -> list[str]:
        """Return all objects below a prefix, sorted."""
        system, prefix = _open_file_system(self.address)
        top = f"{prefix}/{folder}" if folder else prefix
        found = system.get_file_info(fs.FileSelector(top, allow_not_found=True, recursive=True))
        return sorted(one.path.removeprefix(f"{prefix}/") for one in found if one.type is fs.FileType.File)

    def read(self, path: str) -> bytes:
        """Read a whole object. Raises FileNotFoundError."""
        with self.open(path) as file:
            return bytes(file.readall())

    def open(self, path: str) -> pa.NativeFile:
        """Open an object for random access. Raises FileNotFoundError."""
        system, prefix = _open_file_system(self.address)
        return system.open_input_file(f"{prefix}/{path}")

    def size(self, path: str) -> int | None:
        """Return the size in bytes; None if there is no such object."""
        system, prefix = _open_file_system(self.address)
        [info] = system.get_file_info([f"{prefix}/{path}"])
        return info.size if info.type is fs.FileType.File else None

    def write(self, path: str, data: bytes) -> None:
        """Write an object with one upload."""
        system, prefix = _open_file_system(self.address)
        with system.open_output_stream(f"{prefix}/{path}") as stream:
            stream.write(data)

    def remove(self, path: str) -> None:
        """Delete an object if it exists."""
        if self.size(path) is not None:
            system, prefix = _open_file_system(self.address)
            system.delete_file(f"{prefix}/{path}")

    def new_file(self) -> Path:
        """Create a temporary file on this machine."""
        with tempfile.NamedTemporaryFile(prefix="archive-", suffix=STAGED_SUFFIX, delete=False) as file:
            return Path(file.name)

    def finish(self, local: Path, path: str) -> str:
        """Upload a local file to its final path, and delete it; nothing is staged."""
        system, prefix = _open_file_system(self.address)
        with local.open("rb") as source, system.open_output_stream(f"{prefix}/{path}") as stream:
            shutil.copyfileobj(source, stream, 8 << 20)
        local.unlink()
        return ""

    def publish(self, staged: str, path: str) -> None:
        """Do nothing: the object was visible when its upload completed."""
