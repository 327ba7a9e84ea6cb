"""The files of a store for their readers: segments, consume queue units, spans of the log, and small documents.

The documents are the store's identity, recovery points, and other sealed ones, and the JSON tables with their copies.

The broker's tools, the sidecar, the Spark source and the audit all read a store through this package, so that each file
format has one reader and each rule (which names are segments, which units have expired, which copy of a document is
valid) is implemented once. The package writes nothing and has no threads, sockets or clocks.

Files are opened through ``StoreDisk``. The broker's disks satisfy that protocol, and ``PlainDisk`` is the local file
system.
"""

from gantry_store_files.disk import PlainDisk, PlainFile, StoreDisk, StoreFile
from gantry_store_files.log_spans import LogPiece, SpanBytes, read_span, split_span
from gantry_store_files.queue_units import (
    EXTENSION_CODE_MAX,
    FILLER_SIZE,
    NO_UNIT,
    QUEUE_ID_MAX,
    UNIT,
    UNIT_BYTES,
    QueueBounds,
    QueueLocation,
    QueueReader,
    Unit,
    has_expired,
    is_empty,
    is_filler,
    list_queue_locations,
    queue_ids,
    queue_location,
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
    "QueueLocation",
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
    "list_queue_locations",
    "parse_segment_name",
    "queue_ids",
    "queue_location",
    "read_identity",
    "read_small",
    "read_span",
    "segment_at",
    "segment_name",
    "segments_of",
    "split_span",
]
