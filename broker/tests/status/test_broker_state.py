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
from gantry_status.orders import HaStatus, decode_answer, encode

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
    b'"broker_id":2,"address":"","received":60,"flushed":-1,"ack_age_ms":-1}],"master":"","master_id":-1,"trouble":"",'
    b'"epoch_start":-1,"heard_ms":-1,"granted_ms":-1,"peak_bytes_per_s":-1,"is_whole":null,"is_crash_safe":null,'
    b'"is_draining":false,"is_withdrawn":false,"may_acknowledge":false,"may_regain":false,"is_regained":false,'
    b'"missing":[{"start":1,"end":2,"cause":"head","accepted_ms":-1}],"accepted":[],"damaged_bytes":0}\n'
)
"""As brokers and tools of earlier versions write and read it."""


def test_a_status_keeps_its_form_on_the_wire() -> None:
    """The order of the fields, their names, and -1 for an unknown number are stable."""
    assert encode(STATUS) == LINE
    assert decode_answer(LINE) == STATUS
    assert msgspec.json.encode(document_of(STATUS)) + b"\n" == LINE


@pytest.mark.parametrize("number", [-1, None])
def test_an_unknown_number_is_none_however_the_state_is_made(number: int | None) -> None:
    """A caller that compares offsets never gets -1: not from the wire, from plain values, or from its own code."""
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
