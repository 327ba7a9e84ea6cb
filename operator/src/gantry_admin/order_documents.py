"""Orders as they come in over HTTP, and the answer to a promise. Checked strictly: `"7"` is no epoch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gantry_admin.documents import Document
from gantry_status.orders import JSON_INTEGER_MAX


def whole(value: object) -> object:
    """JSON has one kind of number: 7.0 is 7. A text or a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a whole number is needed")
    return value


WHOLE = BeforeValidator(whole)
Epoch = Annotated[int, Field(ge=1, le=JSON_INTEGER_MAX), WHOLE]


class OrderBody(BaseModel):
    """Root of all orders. An unknown field is refused: a broker must not do half of what was meant."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PromiseBody(OrderBody):
    """Follow nobody below this epoch, durably."""

    epoch: Epoch
    to: Annotated[str, Field(max_length=300, pattern=r"^[\x20-\x7e]*$")] = ""


class ExpectedBody(OrderBody):
    """What whoever was named must still be."""

    last_epoch: Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX), WHOLE]
    end: Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX), WHOLE]
    continues: Annotated[int, Field(ge=0, le=JSON_INTEGER_MAX), WHOLE] = 0


class PromoteBody(OrderBody):
    """Be the master in this epoch; with `expected`, only if it still is what was named."""

    epoch: Epoch
    electable: Annotated[list[Annotated[int, Field(ge=0, le=(1 << 31) - 1), WHOLE]], Field(max_length=64)] = []
    force: Annotated[bool, Field(strict=True)] = False
    expected: ExpectedBody | None = None


class DemoteBody(OrderBody):
    """Be a slave of the master in this epoch, whose replication port is at `master`."""

    epoch: Epoch
    master: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[\x21-\x7e]+$")]


class FenceBody(OrderBody):
    """Have no role, and none below this epoch any more."""

    epoch: Epoch


class DrainBody(OrderBody):
    """Take no more sends, commit, flush, wait for the slaves."""

    timeout_ms: Annotated[int, Field(ge=0, le=600_000), WHOLE] = 30_000
    withdraw: Annotated[bool, Field(strict=True)] = False
    goes_on: Annotated[bool, Field(strict=True)] = False


class PromisedDocument(Document):
    """The promise is on disk."""

    epoch: int
    identity: str
    broker_id: int | None
    last_epoch: int
    end: int | None
    granted_ms: int
