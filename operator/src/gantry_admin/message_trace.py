"""Message traces as RocketMQ's clients send them to a topic of their own: parsed from the bodies of its messages. Pure.

A body has one record for each step, and a record has fields in an order that depends on its type:

    record = fields joined by 0x01; records are joined by 0x02

    Pub             time, region, group, topic, id, tags, keys, store host, length, cost, type, offset id, success, host
    SubBefore       time, region, group, request id, message id, retry times, keys
    SubAfter        request id, message id, cost, success, keys, code, time, group
    EndTransaction  time, region, group, topic, id, tags, keys, store host, type, client, transaction id, state

Clients of earlier versions leave out the last fields. A body is untrusted: a record that is not as above is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gantry_admin.progress_documents import TraceStepDocument
from gantry_remoting import join_address
from gantry_wire.compress import inflate_prefix
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_host

BODY_BYTES_MAX: Final = 1 << 20
"""How many bytes of the body of one trace message are parsed. RocketMQ's clients send at most 128 KiB at a time."""

STEPS_MAX: Final = 64
"""The most steps in one answer: one send, and the deliveries to several groups with their retries."""

FIELD_CHARACTERS_MAX: Final = 255
"""The length at which a text of a trace is cut; names of groups and hosts are shorter."""

_RECORDS: Final = "\x02"
_FIELDS: Final = "\x01"


def trace_steps(records: list[StoredMessage], message_id: str) -> list[TraceStepDocument]:
    """Return the steps of one message in the given messages of the topic of traces, by time; at most 64."""
    found = [step for record in records for step in _steps_of(record, message_id)]
    return sorted(found, key=lambda step: step.wall_ms or 0)[:STEPS_MAX]


def _steps_of(record: StoredMessage, message_id: str) -> Iterator[TraceStepDocument]:
    try:
        body = inflate_prefix(record.body, record.sys_flag, BODY_BYTES_MAX)
    except RemoteProtocolError:
        return
    host = join_address(*decode_host(record.born_host))
    for line in body.decode("utf-8", "replace").split(_RECORDS):
        step = _parse(line.split(_FIELDS), message_id, host)
        if step is not None:
            yield step


def _parse(fields: list[str], message_id: str, host: str) -> TraceStepDocument | None:
    """Return the step of one record; None if it is of another message or not as expected."""
    fields = [*fields, *[""] * 16]
    kind = fields[0]
    if kind == "Pub" and fields[5] == message_id:
        return _step("sent", fields[3], fields[1], fields[14] or host, fields[13] or fields[12], fields[10])
    if kind == "SubBefore" and fields[5] == message_id:
        step = _step("delivered", fields[3], fields[1], host)
        return step.model_copy(update={"attempt": _number(fields[6])})
    if kind == "SubAfter" and fields[2] == message_id:
        return _step("consumed", fields[8], fields[7], host, fields[4], fields[3])
    if kind == "EndTransaction" and fields[5] == message_id:
        return _step("transaction ended", fields[3], fields[1], host)
    return None


def _step(step: str, group: str, time: str, host: str, success: str = "", cost: str = "") -> TraceStepDocument:
    return TraceStepDocument.model_validate(
        {
            "step": step,
            "group": group[:FIELD_CHARACTERS_MAX],
            "wall_ms": _number(time),
            "client_host": host[:FIELD_CHARACTERS_MAX],
            "is_success": {"true": True, "false": False}.get(success.strip()),
            "cost_ms": _number(cost),
            "attempt": None,
        }
    )


def _number(text: str) -> int | None:
    """Return a number that is no larger than a time in milliseconds may be; None for any other text."""
    text = text.strip()
    return int(text) if len(text) <= 15 and text.isascii() and text.isdigit() else None
