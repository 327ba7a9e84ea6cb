"""Handles mqadmin's queries about users and policies, of a file of accounts or of the users that the broker stores.

Changes are in `account_changes`. A Super user who asks for one stored user gets the password, too: a proxy needs it to
check signatures. Otherwise passwords are not returned, where RocketMQ returns them to everyone who may list users; and
those of a file never are. A file is shown as if it held users and policies:

    admin: true                       a user of type Super; needs no policies
    defaultTopicPerm, -GroupPerm      policy Default on Topic:* and Group:*; DENY without one
    topicPerms, groupPerms            policy Custom on Topic:<name> and Group:<name>
"""

from collections.abc import Iterable
from typing import Final, final

from gantry_access import Account, AccountFile, AccountStore, Guard, Permission
from gantry_access.account_changes import subject_name
from gantry_access.account_document import describe_entries
from gantry_access.stored_accounts import SUBJECT_PREFIX, StoredUser, UserStatus, UserType
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.accounts import (
    AclFilter,
    AclInfo,
    AclSubject,
    PolicyEntryInfo,
    PolicyInfo,
    UserFilter,
    UserInfo,
    Username,
)
from gantry_wire.commands.documents import write_document
from gantry_wire.fastjson import dumps

ACCESS_CONTROL_OFF: Final = (
    "access control is off on this broker: set aclEnable=true and aclFile, the file of accounts, or "
    "authenticationEnabled=true, to switch it on"
)
"""The answer to requests about accounts if access control is off."""

ACCOUNT_CHANGES: Final = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
)
"""Requests that change users or policies."""


@final
class AccountHandlers:
    """The handlers of queries. Owned by the event loop."""

    def __init__(self, accounts: AccountFile | AccountStore | None, guard: Guard | None) -> None:
        """``accounts`` and ``guard`` are None if access control is off."""
        self._source: Final = accounts
        self._guard: Final = guard

    @handles(RequestCode.AUTH_GET_USER)
    def get_user(self, command: Command, connection: Connection) -> Command:
        """Answer with one user; without a body if it does not exist, as in RocketMQ."""
        name = Username.read(command.ext).username or ""
        if not name.strip():
            raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
        found = self._user(name)
        return command.reply(body=b"" if found is None else write_document(found))

    @handles(RequestCode.AUTH_LIST_USER)
    def list_users(self, command: Command, connection: Connection) -> Command:
        part = (UserFilter.read(command.ext).filter or "").strip()
        return command.reply(body=dumps([user for user in self._users() if part in (user.username or "")]))

    @handles(RequestCode.AUTH_GET_ACL)
    def get_acl(self, command: Command, connection: Connection) -> Command:
        """Answer with the policies of a user; without a body if it has none, as in RocketMQ."""
        name = subject_name(AclSubject.read(command.ext).subject)
        if not any(user.username == name for user in self._users()):
            raise Refused(ResponseCode.NO_PERMISSION, "The subject is not exist.")
        found = next(iter(self._acls([name or ""])), None)
        return command.reply(body=b"" if found is None else write_document(found))

    @handles(RequestCode.AUTH_LIST_ACL)
    def list_acls(self, command: Command, connection: Connection) -> Command:
        request = AclFilter.read(command.ext)
        subject, resource = (request.subject_filter or "").strip(), (request.resource_filter or "").strip()
        names = [user.username or "" for user in self._users() if subject in f"{SUBJECT_PREFIX}{user.username}"]
        return command.reply(body=dumps(list(self._acls(names, resource))))

    def _user(self, name: str) -> UserInfo | None:
        source = self._source
        if isinstance(source, AccountStore) and is_by_super(source, self._guard):
            user = source.tables.users.get(name)
            return None if user is None else describe_user(user, has_password=True)
        return next((user for user in self._users() if user.username == name), None)

    def _users(self) -> list[UserInfo]:
        """Return all users by name, without their passwords."""
        source = self._source
        if source is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, ACCESS_CONTROL_OFF)
        if isinstance(source, AccountStore):
            return [describe_user(source.tables.users[name]) for name in sorted(source.tables.users)]
        return [describe_account(account) for account in source.accounts.by_key.values()]

    def _acls(self, names: Iterable[str], part: str = "") -> Iterable[AclInfo]:
        """Yield the policies of these users, for resources whose text contains ``part``; users without are left out."""
        source = self._source
        for name in names:
            if isinstance(source, AccountStore):
                policies = describe_entries(source.tables.policies.get(name, {}), part)
            else:
                policies = [] if source is None else describe_permissions(source.accounts.by_key[name], part)
            if policies:
                yield AclInfo(subject=f"{SUBJECT_PREFIX}{name}", policies=policies)


def is_by_super(accounts: AccountStore, guard: Guard | None) -> bool:
    """Return whether the request that is being handled was sent by a Super user."""
    requester = None if guard is None else guard.requester
    user = accounts.tables.users.get(requester or "")
    return user is not None and user.type is UserType.SUPER


def describe_user(user: StoredUser, *, has_password: bool = False) -> UserInfo:
    """Return a stored user, without the password unless it is asked for."""
    return UserInfo(
        username=user.name,
        password=user.password if has_password else None,
        user_type=user.type.value,
        user_status=user.status.value,
    )


def describe_account(account: Account) -> UserInfo:
    """Return an account of a file as a user."""
    kind = UserType.SUPER if account.is_admin else UserType.NORMAL
    return UserInfo(username=account.access_key, user_type=kind.value, user_status=UserStatus.ENABLE.value)


def describe_permissions(account: Account, part: str = "") -> list[PolicyInfo]:
    """Return the permissions of an account of a file as policies, for resources whose text contains ``part``."""
    custom = [_entry(f"Topic:{name}", permission) for name, permission in sorted(account.topics.items())]
    custom += [_entry(f"Group:{name}", permission) for name, permission in sorted(account.groups.items())]
    defaults = (("Topic:*", account.default_topic), ("Group:*", account.default_group))
    general = [_entry(resource, permission) for resource, permission in defaults if permission]
    return [
        PolicyInfo(policy_type=kind, entries=kept)
        for kind, entries in (("Custom", custom), ("Default", general))
        if (kept := [entry for entry in entries if part in (entry.resource or "")])
    ]


def _entry(resource: str, permission: Permission) -> PolicyEntryInfo:
    actions = [name for name, bit in (("Pub", Permission.PUB), ("Sub", Permission.SUB)) if permission & bit]
    return PolicyEntryInfo(
        resource=resource, actions=actions or ["Pub", "Sub"], decision="Allow" if actions else "Deny"
    )
