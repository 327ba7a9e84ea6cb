"""The files of a store as their readers see them: segments, consume queue units, spans of the log, sealed documents.

The broker's tools, the sidecar, the Spark source and the audit all read a store through this package, so that a file
format has one reader and a rule (which names are segments, which units have expired, which copy of a document counts)
is decided once. Nothing is written here, and nothing runs: there is no thread, no socket and no clock.

Files are reached through ``StoreDisk``: the broker's disks satisfy it, and ``PlainDisk`` is this machine's.
"""

from gantry_store_files.disk import PlainDisk, PlainFile, StoreDisk, StoreFile
from gantry_store_files.log_spans import LogPiece, SpanBytes, pieces_of, read_span
from gantry_store_files.queue_units import (
    EXTENSION_CODE_MAX,
    FILLER_SIZE,
    NO_UNIT,
    QUEUE_ID_MAX,
    UNIT,
    UNIT_BYTES,
    QueueBounds,
    QueuePlace,
    QueueReader,
    Unit,
    has_expired,
    is_empty,
    is_filler,
    queue_ids,
    queue_place,
    queue_places,
)
from gantry_store_files.sealed import decode_sealed, encode_sealed, read_small
from gantry_store_files.segments import Segment, parse_segment_name, segment_at, segment_name, segments_of
from gantry_store_files.store_identity import StoreIdentity, read_identity

__all__ = [
    "EXTENSION_CODE_MAX",
    "FILLER_SIZE",
    "NO_UNIT",
    "QUEUE_ID_MAX",
    "UNIT",
    "UNIT_BYTES",
    "LogPiece",
    "PlainDisk",
    "PlainFile",
    "QueueBounds",
    "QueuePlace",
    "QueueReader",
    "Segment",
    "SpanBytes",
    "StoreDisk",
    "StoreFile",
    "StoreIdentity",
    "Unit",
    "decode_sealed",
    "encode_sealed",
    "has_expired",
    "is_empty",
    "is_filler",
    "parse_segment_name",
    "pieces_of",
    "queue_ids",
    "queue_place",
    "queue_places",
    "read_identity",
    "read_small",
    "read_span",
    "segment_at",
    "segment_name",
    "segments_of",
]
