"""Requests about open transactions: a producer ends one, and the broker asks how one has ended."""

from typing import Final

from gantry_wire.commands.fields import Fields, Int32, Int64

ENDS_ONCE: Final = "GANTRY_ENDS_ONCE"
"""In a broker's answer to a heartbeat: "true" where a transaction that is committed again stores nothing more."""


class EndTransaction(Fields):
    """Code 37: commit (8) or roll back (12) the half message at these two offsets; 0 says that nobody knows yet."""

    producer_group: str
    tran_state_table_offset: Int64
    """In the queue of half messages."""

    commit_log_offset: Int64
    commit_or_rollback: Int32
    topic: str | None = None
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    bname: str | None = None


class CheckTransactionState(Fields):
    """Code 39, from broker to producer: what became of it?"""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None
