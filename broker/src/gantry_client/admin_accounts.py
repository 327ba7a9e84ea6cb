"""Users and policies of a broker with access control, as its administrators see them; never passwords."""

from typing import TypeVar, final

import msgspec

from gantry_client.calls import require_success
from gantry_client.errors import BadReply
from gantry_client.session import Session
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.accounts import AclFilter, AclInfo, UserFilter, UserInfo
from gantry_wire.commands.fields import Fields

T = TypeVar("T", UserInfo, AclInfo)


@final
class Accounts:
    """Queries of the accounts of single brokers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def users(self, address: str) -> list[UserInfo]:
        """Return the users of a broker, without their passwords. Raises BrokerRefused if access control is off."""
        body = await self._query(address, RequestCode.AUTH_LIST_USER, UserFilter())
        found = _decode(body, list[UserInfo], address)
        # A broker omits passwords; one that does not must not pass them on here.
        return [msgspec.structs.replace(one, password=None) for one in found]

    async def policies(self, address: str) -> list[AclInfo]:
        """Return the policies of a broker, by subject. Raises BrokerRefused if access control is off."""
        return _decode(await self._query(address, RequestCode.AUTH_LIST_ACL, AclFilter()), list[AclInfo], address)

    async def _query(self, address: str, code: RequestCode, header: Fields) -> bytes:
        self._session.require_open()
        command = Command(code=code, ext=header.write())
        reply = await self._session.pool.request(address, command, self._session.settings.request_timeout_ms)
        return require_success(reply, address).body


def _decode(body: bytes, kind: type[list[T]], address: str) -> list[T]:
    try:
        return msgspec.json.decode(body or b"[]", type=kind)
    except msgspec.DecodeError as error:
        raise BadReply(f"{address} answered with an invalid list of accounts: {error}") from error
