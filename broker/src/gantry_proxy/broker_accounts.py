"""The accounts of clients as brokers store them: users and policies, read one by one, and kept for a short time.

    known, younger than `REFRESH_MS`   -> used
    known, younger than `AGE_MS_MAX`   -> used, and read again meanwhile
    otherwise                          -> the call waits for the answer of a broker; without one it fails

So a user who was deleted, disabled or given another password is refused after `AGE_MS_MAX` at the latest, and a user
who was created is accepted at once. While no broker answers, no unknown account gets access, and no known one for
longer than that.

One broker answers for all, the one that answered last: users that are not the same at all brokers of a cluster are
what its administrator has to correct. Only masters are asked, since a slave may lag behind.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, final

from gantry_access.account_document import read_entries
from gantry_access.stored_accounts import SUBJECT_PREFIX, Entries, StoredUser, UserStatus, UserType, make_account
from gantry_client.errors import BadReply, ClientError, RequestFailed, Unavailable
from gantry_proxy.access import AccountUnread, ClientAccount
from gantry_proxy.brokers import BrokerPort, require_ok
from gantry_proxy.cache import AnswerCache, CacheLimits
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.commands.accounts import AclInfo, AclSubject, UserInfo, Username
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.fields import FieldError, Fields
from gantry_wire.commands.nameserver import MASTER_ID

log = logging.getLogger(__name__)

REFRESH_MS: Final = 10_000
"""The age from which an account in use is read again. One account costs its broker two small requests in this time."""
AGE_MS_MAX: Final = 60_000
"""The age from which an account is not used: the longest time for which a revoked account has access. Longer than a
failover, during which no broker may answer."""
ACCOUNTS_MAX: Final = 20_000
"""How many accounts are kept; RocketMQ's proxy has the same limit."""
NAME_CHARACTERS_MAX: Final = 255
"""The longest name of a user at brokers; no broker is asked about a longer one."""
READS_MAX: Final = 16
"""How many accounts are read at once, so that brokers answer the requests of clients meanwhile."""
UNKNOWN_PER_S_MAX: Final = 200
"""How many unknown accounts may be looked up in a second. A client needs no password to make the proxy ask a broker, so
that a flood of invented names would reach the brokers. Known accounts do not count."""
READS_WAITING_MAX: Final = 1_000
"""How many reads may wait before no further unknown account is looked up: while no broker answers, they pile up."""
_CLUSTER_LIMITS: Final = CacheLimits(entries_max=1)


class _StoredAccount(NamedTuple):
    """What a broker has answered, and what was made of it."""

    user: StoredUser
    entries: Entries
    client: ClientAccount


@final
class BrokerAccounts:
    """The accounts that clients use. Owned by one event loop."""

    def __init__(
        self, brokers: BrokerPort, now_ms: Callable[[], int], *, cluster: str = "", checks_policies: bool = True
    ) -> None:
        """``now_ms`` is a monotonic clock; ``cluster`` may be empty if the name servers know only one.

        Without ``checks_policies`` every enabled user has every permission.
        """
        self._brokers: Final = brokers
        self._now_ms: Final = now_ms
        self._cluster: Final = cluster
        self._checks_policies: Final = checks_policies
        limits = CacheLimits(entries_max=ACCOUNTS_MAX, refresh_ms=REFRESH_MS, age_ms_max=AGE_MS_MAX)
        self._known: Final = AnswerCache("account", self._load, now_ms, limits=limits)
        self._masters: Final = AnswerCache("cluster", self._load_masters, now_ms, limits=_CLUSTER_LIMITS)
        self._reads: Final = asyncio.Semaphore(READS_MAX)
        self._last = ""
        """The address of the broker that answered last."""
        self._second = 0
        """The second in which `_lookups` were counted."""
        self._lookups = 0
        self._is_failing = False
        self.failed = 0
        """The number of reads that failed."""

    def __repr__(self) -> str:
        return f"<BrokerAccounts known={len(self._known)} last={self._last} is_failing={self._is_failing}>"

    def __len__(self) -> int:
        return len(self._known)

    def is_trusted(self, peer: str) -> bool:
        """Return False: brokers that store users trust no address."""
        return False

    async def find(self, access_key: str) -> ClientAccount | None:
        """Return the account with this key; None if there is none. Raises ProxyError if that is unknown now."""
        if len(access_key) > NAME_CHARACTERS_MAX:
            return None
        if self._known.asks(access_key) and not self._may_look_up():
            raise ProxyError(pb.TOO_MANY_REQUESTS, "too many unknown accounts are being looked up: try again later")
        try:
            found = await self._known.get(access_key)
        except ClientError as error:
            raise ProxyError(
                pb.HA_NOT_AVAILABLE, "the account cannot be checked now: no broker has answered; try again later"
            ) from error
        return None if found is None else found.client

    def find_at_once(self, access_key: str) -> ClientAccount | None:
        """Return the account with this key if it was read a short time ago. Raises AccountUnread otherwise."""
        found = self._known.fresh(access_key)
        if found is None:
            raise AccountUnread
        return found.client

    def forget_unused(self) -> None:
        """Forget the accounts that were not used for long. Called periodically."""
        self._known.forget_unused()

    async def close(self) -> None:
        """Cancel the reads in progress."""
        await self._known.close()
        await self._masters.close()

    def _may_look_up(self) -> bool:
        second = self._now_ms() // 1_000
        if second != self._second:
            self._second, self._lookups = second, 0
        self._lookups += 1
        return self._lookups <= UNKNOWN_PER_S_MAX and self._known.load_count < READS_WAITING_MAX

    # ------- reading

    async def _load(self, name: str) -> _StoredAccount | None:
        async with self._reads:
            try:
                found = await self._read_anywhere(name)
            except ClientError as error:
                self.failed += 1
                if not self._is_failing:
                    self._is_failing = True
                    log.error(
                        "cannot read accounts from brokers; calls of unknown accounts are refused",
                        extra={"reason": str(error)},
                    )
                raise
            if self._is_failing:
                self._is_failing = False
                log.info("accounts are read from brokers again", extra={"broker": self._last})
            return found

    async def _read_anywhere(self, name: str) -> _StoredAccount | None:
        """Return what the first master answers that can be reached. Raises the error of the last one."""
        addresses = await self._masters.get(self._cluster) or ()
        failure: RequestFailed = Unavailable(_no_master(self._cluster))
        for address in sorted(addresses, key=lambda one: (one != self._last, one)):
            try:
                found = await self._read(address, name)
            except RequestFailed as error:
                failure = error
                continue
            self._last = address
            return found
        raise failure

    async def _load_masters(self, cluster: str) -> tuple[str, ...] | None:
        info = await self._brokers.cluster_info()
        if not cluster and len(info.cluster_addr_table) > 1:
            known = ", ".join(sorted(info.cluster_addr_table))
            raise Unavailable(f"the name servers know the clusters {known}: set access.accountsCluster to one of them")
        names = info.cluster_addr_table.get(cluster, []) if cluster else list(info.broker_addr_table)
        brokers = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
        return tuple(one.broker_addrs[MASTER_ID] for one in brokers if MASTER_ID in one.broker_addrs) or None

    async def _read(self, address: str, name: str) -> _StoredAccount | None:
        """Return the account at one broker. Raises RequestFailed, also for an answer that cannot be used."""
        reply = await self._request(address, RequestCode.AUTH_GET_USER, Username(username=name))
        if not reply.body:
            return None
        try:
            user = _read_user(read_document(reply.body, UserInfo), name)
            entries = await self._read_entries(address, user)
        except ValueError as error:  # FieldError, too
            raise BadReply(f"{address} answered with an invalid user or policy: {_reason(error)}") from None
        old = self._known.peek(name)
        if old is not None and (old.user, old.entries) == (user, entries):
            return old
        account = make_account(user, entries, is_authorizing=self._checks_policies)
        return _StoredAccount(user, entries, ClientAccount(account, user.status is UserStatus.DISABLE))

    async def _read_entries(self, address: str, user: StoredUser) -> Entries:
        if user.type is UserType.SUPER or not self._checks_policies:
            return {}
        reply = await self._request(
            address, RequestCode.AUTH_GET_ACL, AclSubject(subject=f"{SUBJECT_PREFIX}{user.name}")
        )
        return read_entries(read_document(reply.body, AclInfo)) if reply.body else {}

    async def _request(self, address: str, code: RequestCode, header: Fields) -> Command:
        return require_ok(await self._brokers.request(address, code, header), address)


def _read_user(info: UserInfo, name: str) -> StoredUser:
    """Return the user of an answer. Raises ValueError, whose text has no password."""
    if info.username != name:
        raise ValueError("the answer is about another user")
    if not info.password:
        raise ValueError(
            "the broker returns no password: the account of access.credentialsFile needs the type Super at Gantry's "
            "brokers, or the action Get on the cluster at RocketMQ's, and the broker must store users"
        )
    return StoredUser(
        name,
        info.password,
        UserType(info.user_type or UserType.NORMAL),
        UserStatus(info.user_status or UserStatus.ENABLE),
    )


def _reason(error: ValueError) -> str:
    """Return the text of an error without the body of the answer, which has a password."""
    return "the body is malformed" if isinstance(error, FieldError) else str(error)


def _no_master(cluster: str) -> str:
    return f"no name server knows a master of cluster {cluster!r}" if cluster else "no name server knows a master"
