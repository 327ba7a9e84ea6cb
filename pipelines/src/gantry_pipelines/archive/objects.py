"""A destination in an object store (S3 and what speaks like it), by pyarrow's own client.

An object appears whole when its upload ends, and an upload is one request, or several that end together: never half of
it. There is no rename, so a file is seen before it is in the manifest; its name carries its range, so the batch that is
done again puts the same rows under the same name. Days are not compacted here.

    s3://bucket/prefix?endpoint_override=http://127.0.0.1:9000&region=eu-west-1

Keys come from the environment or the machine's role, as for every program that uses AWS (`AWS_ACCESS_KEY_ID`, ...).
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

from gantry_pipelines.archive.errors import BadDestination, CannotCompact
from gantry_pipelines.archive.layout import STAGED_SUFFIX
from gantry_pipelines.archive.storage import Folder, Storage


def storage_of(destination: str) -> Storage:
    """A path, `file:///path`, or the address of an object store."""
    if "://" not in destination:
        return Folder(str(Path(destination).absolute()))
    if destination.startswith("file://"):
        return Folder(urlsplit(destination).path)
    return Objects(destination)


@lru_cache(maxsize=8)
def _opened(address: str) -> tuple[fs.FileSystem, str]:
    try:
        system, prefix = fs.FileSystem.from_uri(address)
    except (ValueError, NotImplementedError) as error:
        raise BadDestination(f"{address} cannot be a destination: {error}") from error
    return system, prefix.rstrip("/")


@final
@dataclass(frozen=True, slots=True)
class Objects:
    """A bucket, or a prefix in one."""

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def is_folder(self) -> bool:
        """It is not."""
        return False

    def paths(self, folder: str = "") -> list[str]:
        """All objects below a prefix."""
        system, prefix = _opened(self.address)
        top = f"{prefix}/{folder}" if folder else prefix
        found = system.get_file_info(fs.FileSelector(top, allow_not_found=True, recursive=True))
        return sorted(one.path.removeprefix(f"{prefix}/") for one in found if one.type is fs.FileType.File)

    def read(self, path: str) -> bytes:
        """A whole object."""
        with self.open(path) as file:
            return bytes(file.readall())

    def open(self, path: str) -> pa.NativeFile:
        """An object to read in places."""
        system, prefix = _opened(self.address)
        return system.open_input_file(f"{prefix}/{path}")

    def size(self, path: str) -> int | None:
        """Its bytes."""
        system, prefix = _opened(self.address)
        [info] = system.get_file_info([f"{prefix}/{path}"])
        return info.size if info.type is fs.FileType.File else None

    def write(self, path: str, data: bytes) -> None:
        """By one upload."""
        system, prefix = _opened(self.address)
        with system.open_output_stream(f"{prefix}/{path}") as stream:
            stream.write(data)

    def remove(self, path: str) -> None:
        """Delete an object, if it is there."""
        if self.size(path) is not None:
            system, prefix = _opened(self.address)
            system.delete_file(f"{prefix}/{path}")

    def new_file(self) -> Path:
        """A file of this machine."""
        with tempfile.NamedTemporaryFile(prefix="archive-", suffix=STAGED_SUFFIX, delete=False) as file:
            return Path(file.name)

    def finish(self, local: Path, path: str) -> str:
        """Upload it under its own name."""
        system, prefix = _opened(self.address)
        with local.open("rb") as source, system.open_output_stream(f"{prefix}/{path}") as stream:
            shutil.copyfileobj(source, stream, 8 << 20)
        local.unlink()
        return ""

    def show(self, staged: str, path: str) -> None:
        """It is seen already."""

    def exchange(self, one: str, other: str) -> None:
        """An object store has no folders to exchange."""
        raise CannotCompact(f"{self.address}: an object store cannot exchange two folders in one step")
