"""Requests about open transactions: a producer ends one, and the broker asks for its state."""

from typing import Final

from gantry_wire.commands.fields import Fields, Int32, Int64

ENDS_ONCE: Final = "GANTRY_ENDS_ONCE"
"""A field in a broker's reply to a heartbeat: "true" if committing a transaction again stores nothing more."""


class EndTransaction(Fields):
    """Code 37: commit the half message at these two offsets (8), roll it back (12), or report no decision yet (0)."""

    producer_group: str
    tran_state_table_offset: Int64
    """The offset in the queue of half messages."""

    commit_log_offset: Int64
    """The physical offset of the half message."""

    commit_or_rollback: Int32
    topic: str | None = None
    from_transaction_check: bool = False
    """Whether the request answers a check of the broker."""

    msg_id: str | None = None
    transaction_id: str | None = None
    bname: str | None = None


class CheckTransactionState(Fields):
    """Code 39, from broker to producer: ask for the state of a transaction."""

    tran_state_table_offset: Int64
    """The offset in the queue of half messages."""

    commit_log_offset: Int64
    """The physical offset of the half message."""

    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None
