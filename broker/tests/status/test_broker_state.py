"""A broker's state has one form in memory, where unknown numbers are None, and one in JSON, where they are -1."""

from __future__ import annotations

import msgspec
import pytest

from gantry_status.broker_state import (
    BrokerState,
    HaRole,
    RangeState,
    SlaveState,
    document_of,
    optional_numbers,
    view_of,
)
from gantry_status.former_names import STATE_NAMES
from gantry_status.orders import BadLine, Drain, HaStatus, decode_answer, decode_order, encode, status_of

STATUS = HaStatus(
    role=HaRole.MASTER,
    epoch=7,
    wrote=90,
    electable=(2,),
    acks_needed=1,
    slaves=(SlaveState(identity="s", number=2, received=60),),
    missing=(RangeState(start=1, end=2, cause="head"),),
)
LINE = (
    b'{"answer":"status","role":"MASTER","epoch":7,"promised_epoch":0,"broker_id":-1,"identity":"","cluster":"",'
    b'"broker_name":"","address":"","ha_address":"","begin":-1,"wrote":90,"committed":-1,"flushed":-1,"acked":-1,'
    b'"confirmed":-1,"dispatched":-1,"last_epoch":0,"electable":[2],"acks_needed":1,"slaves":[{"identity":"s",'
    b'"broker_id":2,"address":"","received":60,"flushed":-1,"ack_age_ms":-1}],"master":"","master_id":-1,"problem":"",'
    b'"epoch_start":-1,"heartbeat_age_ms":-1,"granted_ms":-1,"peak_bytes_per_s":-1,"is_complete":null,"is_crash_safe":null,'
    b'"is_draining":false,"is_withdrawn":false,"may_acknowledge":false,"may_regain":false,"is_regained":false,'
    b'"missing":[{"start":1,"end":2,"cause":"head","accepted_ms":-1}],"accepted":[],"damaged_bytes":0}\n'
)
"""As brokers and tools write and read it."""


def test_a_status_keeps_its_form_on_the_wire() -> None:
    """The order of the fields, their names, and -1 for an unknown number are stable."""
    assert encode(STATUS) == LINE
    assert decode_answer(LINE) == STATUS
    assert msgspec.json.encode(document_of(STATUS)) + b"\n" == LINE


def test_a_status_of_an_earlier_version_is_read() -> None:
    """The former names of fields count where the present ones are missing."""
    state = HaStatus(role=HaRole.SLAVE, problem="connecting", heartbeat_age_ms=7, is_complete=False)
    former = encode(state)
    for before, now in STATE_NAMES.items():
        assert b'"%s"' % now.encode() in former and b'"%s"' % before.encode() not in former
        former = former.replace(b'"%s"' % now.encode(), b'"%s"' % before.encode())

    assert decode_answer(former) == state == status_of(msgspec.json.decode(former))
    both = msgspec.json.decode(encode(state)) | {"trouble": "older", "is_whole": True}
    assert decode_answer(msgspec.json.encode(both)) == state


def test_a_drain_of_an_earlier_version_is_obeyed() -> None:
    """`goes_on` is `clients_only`, which is sent only where it is set, since an earlier version does not know it."""
    assert decode_order(b'{"order":"drain","timeout_ms":5,"withdraw":true,"goes_on":true}') == Drain(
        timeout_ms=5, withdraw=True, clients_only=True
    )
    assert decode_order(b'{"order":"drain","timeout_ms":5,"goes_on":false}') == Drain(timeout_ms=5)
    assert encode(Drain(timeout_ms=5)) == b'{"order":"drain","timeout_ms":5}\n'
    with pytest.raises(BadLine, match="goes_on"):
        decode_order(b'{"order":"fence","epoch":5,"goes_on":true}')


@pytest.mark.parametrize("number", [-1, None])
def test_an_unknown_number_is_none_however_the_state_is_made(number: int | None) -> None:
    """No field is -1, whether the state comes from the wire, from plain values or from code.

    Only `log_position`, which orders logs, has -1 for an unknown end.
    """
    document = document_of(STATUS) | dict.fromkeys(optional_numbers(HaStatus), number)
    for state in (
        msgspec.convert(document, HaStatus),
        msgspec.json.decode(msgspec.json.encode(document), type=HaStatus),
        HaStatus(role=HaRole.SLAVE, **dict.fromkeys(optional_numbers(HaStatus), number)),
    ):
        assert {getattr(state, name) for name in optional_numbers(HaStatus)} == {None}
        assert state.log_position == (state.last_epoch, -1)
    assert msgspec.convert({"broker_id": 2, "received": -1}, SlaveState).received is None


def test_a_view_holds_the_same_state() -> None:
    """Nothing is lost between a broker's answer and a view of it."""

    class Dated(BrokerState, frozen=True, kw_only=True):
        at_ms: int

    view = view_of(STATUS, Dated, at_ms=5)

    assert (view.at_ms, view.slaves, view.missing_bytes) == (5, STATUS.slaves, 1)
    assert all(getattr(view, name) == getattr(STATUS, name) for name in BrokerState.__struct_fields__)
