"""Encodes and decodes RocketMQ's wire protocol and record format.

The package has no sockets, files or clocks: every function takes bytes or values and returns them. Both ends of a
connection, the commit log, the command line and the data pipelines read and write through it.
"""

from gantry_wire.codes import Language, RequestCode, ResponseCode
from gantry_wire.command import Command, decode_command, next_opaque, oneway
from gantry_wire.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from gantry_wire.frame import Frame, FrameReader, Serialization
from gantry_wire.limits import WireLimits
from gantry_wire.message import StoredMessage, decode_record, decode_records, encode_record

__all__ = [
    "Command",
    "Frame",
    "FrameReader",
    "Language",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestCode",
    "ResponseCode",
    "Serialization",
    "StoredMessage",
    "WireLimits",
    "decode_command",
    "decode_record",
    "decode_records",
    "encode_record",
    "next_opaque",
    "oneway",
]
