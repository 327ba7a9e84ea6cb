"""The bodies of orders over HTTP, and the answer to a promise. They are validated strictly: `"7"` is no epoch."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from gantry_admin.documents import Document
from gantry_status.orders import JSON_INTEGER_MAX


def require_whole_number(value: object) -> object:
    """Accept numbers only: JSON has one kind of number, so 7.0 is 7, but a string or a boolean is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a whole number")
    return value


WHOLE = BeforeValidator(require_whole_number)
"""Accepts whole numbers only, see ``require_whole_number``."""

Epoch = Annotated[int, Field(ge=1, le=JSON_INTEGER_MAX), WHOLE]


class OrderBody(BaseModel):
    """The base of all orders. An unknown field is refused: a broker must not execute an order in part."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PromiseBody(OrderBody):
    """An order to follow no master below this epoch, durably."""

    epoch: Epoch
    to: Annotated[str, Field(max_length=300, pattern=r"^[\x20-\x7e]*$")] = ""
    """The name of the requester, for display."""


class ExpectedBody(OrderBody):
    """The state that the broker must still have when it is promoted."""

    last_epoch: Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX), WHOLE]
    """The epoch of the last record in its log."""

    end: Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX), WHOLE]
    """The end that its log must at least have."""

    continues: Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX), WHOLE] = 0
    """The epoch of which it must still be the master; 0 if it was elected."""


class PromoteBody(OrderBody):
    """An order to become the master in this epoch; with `expected`, only if the broker still has that state."""

    epoch: Epoch
    electable: Annotated[list[Annotated[int, Field(ge=0, le=(1 << 31) - 1), WHOLE]], Field(max_length=64)] = []
    """The slaves whose acks count, and that may be promoted after this epoch."""

    force: Annotated[bool, Field(strict=True)] = False
    """Whether it accepts its log as it is, although data may be lost."""

    expected: ExpectedBody | None = None


class DemoteBody(OrderBody):
    """An order to become a slave of the master in this epoch, whose replication port is at `master`."""

    epoch: Epoch
    master: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]+$")]


class FenceBody(OrderBody):
    """An order to give up any role, and to take none below this epoch."""

    epoch: Epoch


class DrainBody(OrderBody):
    """An order to refuse sends, commit, flush, and wait for the slaves."""

    timeout_ms: Annotated[int, Field(ge=0, le=600_000), WHOLE] = 30_000
    withdraw: Annotated[bool, Field(strict=True)] = False
    """Whether the broker also withdraws its routes, and stays so after a timeout."""
    clients_only: Annotated[bool, Field(strict=True, validation_alias=AliasChoices("clients_only", "goes_on"))] = False
    """Whether it only withdraws its routes and refuses clients' sends, and completes the work that it has accepted. An
    operator of an earlier version names the field `goes_on`."""


class FlushBody(OrderBody):
    """An order to flush, which may mark the point of a backup."""

    backup: Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9._-]*$")] = ""
    """The name of the backup; empty for none."""


class PromisedDocument(Document):
    """The answer to a promise, which is on disk."""

    epoch: int
    identity: str
    """The uuid of the store that has promised."""

    broker_id: int | None
    last_epoch: int
    """The epoch of the last record in its log."""

    end: int | None
    """The end of its log; null if it is unknown."""

    granted_ms: int
    """The remaining time for which a grant that it gave before may be valid."""
