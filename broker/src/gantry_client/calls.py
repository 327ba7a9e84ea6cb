"""One question to one peer, as typed values: headers and documents out, headers and documents back.

Everything above this module speaks in structs of `gantry_wire.commands`; everything below speaks in commands. A reply
with an error code becomes BrokerRefused here, one that cannot be read becomes BadReply, and nowhere else.
"""

from typing import TypeVar, final

from gantry_client.connections import ConnectionPool
from gantry_client.errors import BadReply, BrokerRefused
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import Document
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError, Fields

F = TypeVar("F", bound=Fields)
D = TypeVar("D", bound=Document)


@final
class Calls:
    """Questions over a connection pool, with one default timeout."""

    def __init__(self, pool: ConnectionPool, timeout_ms: int) -> None:
        self._pool = pool
        self._timeout_ms = timeout_ms

    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: Fields | None = None,
        body: Document | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> Command:
        """The reply of `address`, whatever its code."""
        command = Command(
            code=code,
            ext=header.write() if header is not None else {},
            body=write_document(body) if body is not None else b"",
        )
        return await self._pool.request(address, command, timeout_ms or self._timeout_ms)

    async def demand(
        self,
        address: str,
        code: RequestCode,
        header: Fields | None = None,
        body: Document | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> Command:
        """The reply of `address` if it is code 0; anything else raises BrokerRefused."""
        return succeeded(await self.ask(address, code, header, body, timeout_ms=timeout_ms), address)

    async def header(self, address: str, code: RequestCode, kind: type[F], header: Fields) -> F:
        """The header of the reply of `address`. Raises BrokerRefused and BadReply."""
        return header_of(await self.demand(address, code, header), kind, address)

    async def document(
        self,
        address: str,
        code: RequestCode,
        kind: type[D],
        header: Fields | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> D:
        """The document in the reply of `address`. Raises BrokerRefused and BadReply."""
        return document_of(await self.demand(address, code, header, timeout_ms=timeout_ms), kind, address)


def succeeded(reply: Command, address: str) -> Command:
    """`reply` itself when its code is 0. Raises BrokerRefused."""
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerRefused(reply.code, reply.remark, address)
    return reply


def header_of(reply: Command, kind: type[F], address: str) -> F:
    """The reply's header as `kind`. Raises BadReply."""
    try:
        return kind.read(reply.ext)
    except FieldError as error:
        raise BadReply(f"{address} answered without a {kind.__name__}: {error}") from error


def document_of(reply: Command, kind: type[D], address: str) -> D:
    """The reply's body as `kind`. Raises BadReply."""
    try:
        return read_document(reply.body, kind)
    except FieldError as error:
        raise BadReply(f"{address} answered without a {kind.__name__}: {error}") from error
