"""What `store.json` says of a log's history, for readers of the file: which epoch wrote it from where on.

The file is one line with the CRC-32 of the rest in hex, then JSON; `broker/docs/file-formats.md` has all of it. The
broker's store writes it, and nobody else.
"""

from typing import Final, NamedTuple
from zlib import crc32

import msgspec

FORMAT: Final = 1


class EpochBegin(NamedTuple):
    """From `begin` to the begin of the next one the log has one writer."""

    epoch: int
    begin: int


class _Epoch(msgspec.Struct):
    epoch: int
    start: int


class _Identity(msgspec.Struct):
    epochs: list[_Epoch]
    format: int = FORMAT


def read_epochs(data: bytes) -> tuple[EpochBegin, ...]:
    """The epochs, in the order of the log. Raises ValueError for anything that is not whole."""
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32(body):
        raise ValueError("its CRC is wrong")
    try:
        identity = msgspec.json.decode(body, type=_Identity)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if identity.format != FORMAT:
        raise ValueError(f"its format is {identity.format}")
    return tuple(EpochBegin(one.epoch, one.start) for one in identity.epochs)
