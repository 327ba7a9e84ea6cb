"""Handles mqadmin's changes of users and policies: makes them where this broker stores them, and refuses others.

A file of accounts is maintained by an administrator or the operator, and read by every server of a group: a change by
one broker would not reach the others, and a mounted Secret cannot be written. So it is refused with the file's name.

    request -> new tables, for all requests from now on -> on the disk -> on slaves -> answered

A change takes effect at once and is answered when it is as safe as a message in the mode of the group. The tables are
sent to slaves when they change; after that a record is appended to the log (`core.account_records`). A
slave that has the record has the tables, too, since one stream carries both in order. So the answer waits for the
acks of that record, and an election, which prefers the longest log, prefers a slave that has the change.

A change that is in effect and not safe, because the disk or the log has refused it, is never answered as if it had not
been made: the codes are those of a message that is stored and not acknowledged. The request may be repeated: then the
tables stay as they are, and the answer waits again until they are safe.

A slave accepts no change: it answers 0 if it has what the request asks for, because mqadmin sends a change of a
cluster to masters and slaves, and otherwise RocketMQ's code and text for changes that belong to the master.
"""

from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import AccountFile, AccountStore, Guard
from gantry_access.account_changes import (
    INTERNAL_ERROR,
    ChangeRefused,
    create_user,
    delete_acl,
    delete_user,
    put_acl,
    subject_name,
    update_user,
)
from gantry_access.account_document import BYTES_MAX, write_tables
from gantry_access.stored_accounts import AccountTables
from gantry_broker.errors import BrokerError
from gantry_broker.server.admin.account_handlers import ACCESS_CONTROL_OFF, is_by_super
from gantry_broker.server.core.account_records import append_change_record
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused, store_refusal
from gantry_broker.server.send.ack_gate import AckGate
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.accounts import AclInfo, AclSubject, DeleteAcl, UserInfo, Username
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.fields import FieldError

ON_SLAVE: Final = "Can't modify users or policies from slave broker, please execute it from master broker."
"""The answer of a slave, in RocketMQ's words for topics and groups."""

ONLY_HERE: Final = "the change is stored here, but a failover may lose it"
"""The beginning of the answer to a change that slaves may not have."""

Change = Callable[[AccountTables], AccountTables]
Answer = Command | Awaitable[Command]


@final
class AccountChangeHandlers:
    """The handlers of changes. Owned by the event loop."""

    def __init__(
        self, core: BrokerCore, accounts: AccountFile | AccountStore | None, guard: Guard | None, ack_gate: AckGate
    ) -> None:
        """``accounts`` and ``guard`` are None if access control is off."""
        self._core: Final = core
        self._source: Final = accounts
        self._guard: Final = guard
        self._ack_gate: Final = ack_gate
        self._unconfirmed: AccountTables | None = None
        """The tables of the last change that was made here, until they are safe."""
        self._recorded = (0, 0)
        """The epoch and the number of the last change whose record was appended here."""

    @handles(RequestCode.AUTH_CREATE_USER)
    def create_user(self, command: Command, connection: Connection) -> Answer:
        name, info = self._read_user(command)
        if self._has_from_master() and self._has_user(name, info):
            return command.reply()
        return self._change(command, lambda tables: create_user(tables, name, info, is_by_super=self._is_by_super()))

    @handles(RequestCode.AUTH_UPDATE_USER)
    def update_user(self, command: Command, connection: Connection) -> Answer:
        name, info = self._read_user(command)
        return self._change(command, lambda tables: update_user(tables, name, info, is_by_super=self._is_by_super()))

    @handles(RequestCode.AUTH_DELETE_USER)
    def delete_user(self, command: Command, connection: Connection) -> Answer:
        name = Username.read(command.ext).username or ""
        return self._change(command, lambda tables: delete_user(tables, name, is_by_super=self._is_by_super()))

    @handles(RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL)
    def put_acl(self, command: Command, connection: Connection) -> Answer:
        subject = AclSubject.read(command.ext).subject or ""
        self._check_stored()
        info = read_document(command.body, AclInfo) if command.body else AclInfo()
        return self._change(command, lambda tables: put_acl(tables, subject, info))

    @handles(RequestCode.AUTH_DELETE_ACL)
    def delete_acl(self, command: Command, connection: Connection) -> Answer:
        request = DeleteAcl.read(command.ext)
        subject = request.subject or ""
        if self._has_from_master() and self._has_deleted(subject):
            return command.reply()
        return self._change(command, lambda tables: delete_acl(tables, subject, request.policy_type, request.resource))

    @property
    def _accounts(self) -> AccountStore:
        """The stored users and policies. Raises Refused if this broker does not store them."""
        return self._check_stored()

    def _check_stored(self) -> AccountStore:
        source = self._source
        if isinstance(source, AccountStore):
            return source
        if source is None:
            raise Refused(ResponseCode.NO_PERMISSION, ACCESS_CONTROL_OFF)
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"accounts are stored in {source.path} (aclFile), which this broker only reads: "
            "change them there, and every server that reads the file follows within seconds",
        )

    # ------- one change

    def _change(self, command: Command, change: Change) -> Answer:
        """Make a change, and return the answer that waits until it is safe. Raises Refused."""
        before = self._accounts.tables
        try:
            tables = change(before)
        except ChangeRefused as refused:
            raise Refused(refused.code, refused.text) from refused
        if tables is before:
            return command.reply() if self._has_from_master() else self._answer_when_safe(command, before)
        if self._core.gate.write_refusal is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, ON_SLAVE)
        if len(write_document(write_tables(tables))) > BYTES_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"users and policies would need more than {BYTES_MAX} bytes: delete those that are not needed, or use "
                "prefixes such as Topic:orders-*",
            )
        self._accounts.replace(tables)
        self._unconfirmed = tables
        self._core.persistence.mark("accounts", now=True)
        return self._answer_when_safe(command, tables)

    def _has_from_master(self) -> bool:
        """Whether this broker accepts no change, and its tables have none of its own that may be lost."""
        return self._core.gate.write_refusal is not None and self._accounts.tables is not self._unconfirmed

    async def _answer_when_safe(self, command: Command, tables: AccountTables) -> Command:
        """Return the answer to a request for these tables, which are in effect, when they are on disk and on slaves."""
        core = self._core
        try:
            await core.persistence.wait_until_written("accounts")
        except (OSError, BrokerError) as error:
            text = f"the change is in effect, but not on the disk, a restart may lose it: {error}; it is written later"
            return command.reply(ResponseCode.FLUSH_DISK_TIMEOUT, text)
        refusal = core.gate.write_refusal
        if refusal is not None:
            return command.reply(refusal.code, f"the change may be lost: {refusal.remark}; check it at the master")
        try:
            self._record(tables.change_count)
        except BrokerError as error:
            refusal = store_refusal(error)
            core.stats.refusals.count(refusal)
            text = f"{ONLY_HERE}: the log has no record of it: {refusal.remark}; repeat the request"
            return command.reply(ResponseCode.FLUSH_SLAVE_TIMEOUT, text)
        code = await self._ack_gate.wait_until_acknowledged()
        if code is not ResponseCode.SUCCESS:
            return command.reply(code, f"{ONLY_HERE}: slaves have not confirmed it")
        if self._unconfirmed is tables:
            self._unconfirmed = None
        return command.reply()

    def _record(self, change_count: int) -> None:
        """Append the record of a change, unless this master has. Raises errors of the store.

        Slaves get it after the tables, which were sent when they changed.
        """
        change = (self._core.store.identity.epoch, change_count)
        if change > self._recorded:
            append_change_record(self._core, change_count)
            self._recorded = change

    # ------- what the tables have

    def _read_user(self, command: Command) -> tuple[str, UserInfo]:
        """Return the user that a request names, with its body. Raises Refused."""
        self._check_stored()
        name = Username.read(command.ext).username or ""
        if not name:
            raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
        try:
            return name, read_document(command.body, UserInfo)
        except FieldError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, INTERNAL_ERROR) from error

    def _is_by_super(self) -> bool:
        """Return whether the request was sent by a Super user."""
        return is_by_super(self._accounts, self._guard)

    def _has_user(self, name: str, info: UserInfo) -> bool:
        """Return whether the user exists as `createUser` would create it."""
        user = self._accounts.tables.users.get(name)
        if user is None or user.password != info.password:
            return False
        empty = AccountTables()
        try:
            return create_user(empty, name, info, is_by_super=True).users[name] == user
        except ChangeRefused:
            return False

    def _has_deleted(self, subject: str) -> bool:
        """Return whether the subject is a user without policies."""
        tables, name = self._accounts.tables, subject_name(subject)
        return name in tables.users and name not in tables.policies
