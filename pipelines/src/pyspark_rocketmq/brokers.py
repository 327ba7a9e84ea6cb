"""Synchronous requests to name servers and brokers, with errors classified by who has to act.

For reads, the response code of a refusal is mapped to an error here, and only here: access is denied or the consumer
group is unknown (`Refused`), the topic does not exist there yet (`NotYetAvailable`), or a later attempt may succeed
(`Unreachable`). The status of a pull is mapped in `transport.pull`. The sink maps codes in `sink.requests` and
`sink.transaction_ender`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, final

from gantry_client import BrokerRefused, ClientError, NoRoute, RequestFailed
from gantry_client.sync import Admin
from gantry_wire.codes import ResponseCode
from pyspark_rocketmq.errors import NoReplica, Refused
from pyspark_rocketmq.replica_view import NotYetAvailable, Unreachable, ViewError
from pyspark_rocketmq.settings import ReadSettings

T = TypeVar("T")

PAUSE_S: Final = 0.5
"""Seconds between two attempts of a request."""

_FORBIDDEN: Final = frozenset({int(ResponseCode.NO_PERMISSION), int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)})
_TOPIC_MISSING: Final = frozenset({int(ResponseCode.TOPIC_NOT_EXIST)})


@final
class Brokers:
    """Connections to name servers and brokers, opened at first use and kept until `close`.

    One thread at a time: the first use is not guarded by a lock.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._admin: Admin | None = None

    def __repr__(self) -> str:
        return f"<Brokers {self._settings.name_servers} {'open' if self._admin else 'closed'}>"

    @property
    def admin(self) -> Admin:
        """The client, started at first use."""
        if self._admin is None:
            admin = Admin(self._settings.name_servers, client_settings=self._settings.client_settings())
            admin.start()
            self._admin = admin
        return self._admin

    def call(self, request: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """Make one request and return its response. Raises Unreachable, NotYetAvailable, Refused, or NoRoute."""
        try:
            return self.admin.wait(request(self.admin))
        except BrokerRefused as error:
            if error.code in _FORBIDDEN:
                raise Refused(f"{error}; check the credentials, the permissions and the group") from error
            if error.code in _TOPIC_MISSING:
                raise NotYetAvailable(str(error)) from error
            raise Unreachable(str(error)) from error
        except RequestFailed as error:
            raise Unreachable(str(error)) from error
        except NoRoute:
            raise
        except ClientError as error:
            raise Unreachable(str(error)) from error

    def close(self) -> None:
        """Close all connections of this object."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def call_with_retries(what: str, attempt: Callable[[], T], patience_ms: int) -> T:
    """Return the result of `attempt`, repeated while it raises a ViewError. Raises NoReplica after `patience_ms`.

    An error of another class, such as Refused or DataLost, is raised at once.
    """
    deadline = time.monotonic() + patience_ms / 1000
    while True:
        try:
            return attempt()
        except ViewError as error:
            if time.monotonic() >= deadline:
                raise NoReplica(f"{what}: timed out after {patience_ms} ms: {error}") from error
            time.sleep(PAUSE_S)
