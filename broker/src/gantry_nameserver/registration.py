"""Decodes the body of a registration, in every format that brokers have used.

Three forms: a JSON document (all brokers since 3.0.11), the bare topic table (older ones), and a zlib stream of
length-prefixed parts (`compressed=true`; a setting of Java brokers, off by default):

    | length, data version | number of topics | length, topic ... | length, filter servers | number of mappings | ... |
                                                `name read write permission filter-type {attributes}`
      mappings only since version 5.0.0

Lengths in the stream come from a peer: each is checked against the remaining bytes before it is used.
"""

import struct
from typing import Final

import msgspec

from gantry_wire.commands.admin import DataVersion, TopicConfig
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.nameserver import RegisteredTopics, Registration, TopicQueueMapping
from gantry_wire.compress import inflate
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.fastjson import loads

VERSION_WITH_FILTER_SERVERS: Final = 37
"""RocketMQ 3.0.11; older brokers send the topic table alone."""

VERSION_WITH_MAPPINGS: Final = 413
"""RocketMQ 5.0.0; older compressed bodies end after the filter servers."""

_INT: Final = struct.Struct(">i")


def read_registration(body: bytes, *, is_compressed: bool, version: int) -> Registration:
    """Decode the registration of a broker of `version`. Raises FieldError."""
    if not body:
        return Registration()
    if version < VERSION_WITH_FILTER_SERVERS:
        return Registration(topic_config_serialize_wrapper=read_document(body, RegisteredTopics))
    if not is_compressed:
        return read_document(body, Registration)
    try:
        return _read_compressed(inflate(body), has_mappings=version >= VERSION_WITH_MAPPINGS)
    except RemoteProtocolError as error:
        raise FieldError(str(error)) from error


def _read_compressed(data: bytes, *, has_mappings: bool) -> Registration:
    parts = _Parts(data)
    topics = RegisteredTopics(data_version=read_document(parts.read_part(), DataVersion))
    for _ in range(parts.read_count()):
        config = _read_topic(parts.read_part())
        topics.topic_config_table[config.topic_name] = config
    registration = Registration(topic_config_serialize_wrapper=topics, filter_server_list=_read_list(parts.read_part()))
    if has_mappings:
        for _ in range(parts.read_count()):
            mapping = read_document(parts.read_part(), TopicQueueMapping)
            topics.topic_queue_mapping_info_map[mapping.topic] = mapping
    return registration


def _read_topic(data: bytes) -> TopicConfig:
    try:
        columns = data.decode().split(" ", 5)
        name, read, write, permission, filter_type = columns[:5]
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=int(read),
            write_queue_nums=int(write),
            perm=int(permission),
            topic_filter_type=filter_type,
        )
    except ValueError as error:
        raise FieldError(f"a compressed registration has an invalid topic: {error}") from error
    return config


def _read_list(data: bytes) -> list[str]:
    try:
        return msgspec.convert(loads(data) or [], list[str])
    except (ValueError, RecursionError) as error:
        raise FieldError(f"a compressed registration has an invalid list of filter servers: {error}") from error


class _Parts:
    """A reader of counts and length-prefixed parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read_count(self) -> int:
        end = self._position + _INT.size
        if end > len(self._data):
            raise FieldError("a compressed registration is truncated")
        (count,) = _INT.unpack_from(self._data, self._position)
        self._position = end
        if not 0 <= count <= len(self._data) - end:
            raise FieldError(f"a compressed registration announces {count}, but has fewer bytes left")
        return int(count)

    def read_part(self) -> bytes:
        size = self.read_count()
        part = self._data[self._position : self._position + size]
        self._position += size
        return part
