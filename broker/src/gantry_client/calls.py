"""Requests to one peer with typed values: headers and documents out, headers and documents back.

The modules above this one use the structs of `gantry_wire.commands`; the modules below use commands. A reply with an
error code becomes BrokerRefused here, and a reply that cannot be decoded BadReply. Modules that accept several codes
(sends, pulls, replies) or decode records raise these errors themselves.
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
    """Typed requests over a connection pool, with one default timeout."""

    def __init__(self, pool: ConnectionPool, timeout_ms: int) -> None:
        self._pool = pool
        self._timeout_ms = timeout_ms

    async def request(
        self,
        address: str,
        code: RequestCode,
        header: Fields | None = None,
        body: Document | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> Command:
        """Return the reply of `address`, with any response code."""
        command = Command(
            code=code,
            ext=header.write() if header is not None else {},
            body=write_document(body) if body is not None else b"",
        )
        return await self._pool.request(address, command, timeout_ms or self._timeout_ms)

    async def request_success(
        self,
        address: str,
        code: RequestCode,
        header: Fields | None = None,
        body: Document | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> Command:
        """Return the reply of `address` if its code is 0. Raises BrokerRefused for any other code."""
        return require_success(await self.request(address, code, header, body, timeout_ms=timeout_ms), address)

    async def request_header(self, address: str, code: RequestCode, kind: type[F], header: Fields) -> F:
        """Return the header of the reply of `address`. Raises BrokerRefused and BadReply."""
        return parse_header(await self.request_success(address, code, header), kind, address)

    async def request_document(
        self,
        address: str,
        code: RequestCode,
        kind: type[D],
        header: Fields | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> D:
        """Return the document in the reply of `address`. Raises BrokerRefused and BadReply."""
        return parse_document(await self.request_success(address, code, header, timeout_ms=timeout_ms), kind, address)


def require_success(reply: Command, address: str) -> Command:
    """Return `reply` if its code is 0. Raises BrokerRefused otherwise."""
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerRefused(reply.code, reply.remark, address)
    return reply


def parse_header(reply: Command, kind: type[F], address: str) -> F:
    """Decode the header of a reply as `kind`. Raises BadReply."""
    try:
        return kind.read(reply.ext)
    except FieldError as error:
        raise BadReply(f"{address} answered without a valid {kind.__name__}: {error}") from error


def parse_document(reply: Command, kind: type[D], address: str) -> D:
    """Decode the body of a reply as `kind`. Raises BadReply."""
    try:
        return read_document(reply.body, kind)
    except FieldError as error:
        raise BadReply(f"{address} answered without a valid {kind.__name__}: {error}") from error
