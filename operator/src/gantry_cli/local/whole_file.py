"""Small files that are there whole or as they were before, and are never believed when they are damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from gantry_cli.errors import CliError

T = TypeVar("T")


def write_whole(path: Path, data: bytes, *, mode: int = 0o600, is_durable: bool = True) -> None:
    """Replace a file; with ``is_durable`` a power cut after this finds it. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if is_durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    if is_durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_whole(path: Path, kind: type[T], remedy: str) -> T | None:
    """What stands in a file of JSON; None if there is none. Raises CliError with ``remedy`` if it is damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}", remedy) from error
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CliError(f"{path} is damaged: {error}", remedy) from error
