"""Name servers and brokers, asked by a program without an event loop: one client, and errors by who has to act.

What a broker says with a code becomes one of three things here, and nowhere else: it may do better in a moment
(`Unreachable`), it will not have us (`Refused`), or it is no answer at all, which is a bug of somebody's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, final

from gantry_client import BrokerRefused, ClientError, NoRoute, RequestFailed
from gantry_client.sync import Admin
from gantry_wire.codes import ResponseCode
from pyspark_rocketmq.errors import NoReplica, Refused
from pyspark_rocketmq.replica_view import NotYet, Unreachable, ViewError
from pyspark_rocketmq.settings import ReadSettings

T = TypeVar("T")

PAUSE_S: Final = 0.5
"""Between two rounds of asking."""

_FORBIDDEN: Final = frozenset({int(ResponseCode.NO_PERMISSION), int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)})
_NOT_HERE_YET: Final = frozenset({int(ResponseCode.TOPIC_NOT_EXIST)})


@final
class Brokers:
    """Connections to name servers and brokers, kept until `close`. Started when first needed; any thread."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._admin: Admin | None = None

    def __repr__(self) -> str:
        return f"<Brokers {self._settings.name_servers} {'open' if self._admin else 'closed'}>"

    @property
    def admin(self) -> Admin:
        """Our client."""
        if self._admin is None:
            admin = Admin(self._settings.name_servers, client_settings=self._settings.client_settings())
            admin.start()
            self._admin = admin
        return self._admin

    def ask(self, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """One answer. Raises Unreachable, NotYet, Refused, or NoRoute."""
        try:
            return self.admin.wait(question(self.admin))
        except BrokerRefused as error:
            if error.code in _FORBIDDEN:
                raise Refused(f"{error}; look at credentials, rights and the group") from error
            if error.code in _NOT_HERE_YET:
                raise NotYet(str(error)) from error
            raise Unreachable(str(error)) from error
        except RequestFailed as error:
            raise Unreachable(str(error)) from error
        except NoRoute:
            raise
        except ClientError as error:
            raise Unreachable(str(error)) from error

    def close(self) -> None:
        """Close all connections."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def patiently(what: str, attempt: Callable[[], T], patience_ms: int) -> T:
    """What `attempt` gives, as soon as it gives anything. Raises NoReplica when patience ends."""
    deadline = time.monotonic() + patience_ms / 1000
    while True:
        try:
            return attempt()
        except ViewError as error:
            if time.monotonic() >= deadline:
                raise NoReplica(f"{what}: nobody could tell within {patience_ms} ms: {error}") from error
            time.sleep(PAUSE_S)
