"""Handles mqadmin's requests about accounts and permissions, codes 3001 to 3010.

Accounts are in a file that an administrator or the operator maintains, and that every server of a group reads: a change
by one broker would not reach the others, and a mounted Secret cannot be written. So queries are answered from the
present accounts, and changes are refused with the name of the file. Secrets are never returned, where RocketMQ returns
the password.

    admin: true                       a user of type Super; needs no policies
    defaultTopicPerm, -GroupPerm      policy Default on Topic:* and Group:*; DENY without one
    topicPerms, groupPerms            policy Custom on Topic:<name> and Group:<name>
"""

from typing import Any, Final, final

from gantry_access import Account, Guard, Permission
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import AclFilter, AclSubject, UserFilter, Username
from gantry_wire.fastjson import dumps

SUBJECT_PREFIX: Final = "User:"
"""RocketMQ's prefix of an account in requests about permissions."""
ACCESS_CONTROL_OFF: Final = (
    "access control is off on this broker: set aclEnable=true and aclFile, the file of accounts, to switch it on"
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
"""Requests that would change accounts or permissions, all of which are refused."""


@final
class AccountHandlers:
    """The handlers of accounts. Owned by the event loop."""

    def __init__(self, guard: Guard | None) -> None:
        """``guard`` is None if access control is off."""
        self._guard: Final = guard

    @handles(RequestCode.AUTH_GET_USER)
    def get_user(self, command: Command, connection: Connection) -> Command:
        """Answer with one account; without a body if it does not exist, as in RocketMQ."""
        name = Username.read(command.ext).username or ""
        if not name.strip():
            raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
        account = next((one for one in self._accounts() if one.access_key == name), None)
        return command.reply(body=b"" if account is None else dumps(user_document(account)))

    @handles(RequestCode.AUTH_LIST_USER)
    def list_users(self, command: Command, connection: Connection) -> Command:
        part = (UserFilter.read(command.ext).filter or "").strip()
        return command.reply(body=dumps([user_document(one) for one in self._accounts() if part in one.access_key]))

    @handles(RequestCode.AUTH_GET_ACL)
    def get_acl(self, command: Command, connection: Connection) -> Command:
        """Answer with the permissions of an account; without a body if it has none, as in RocketMQ."""
        subject = AclSubject.read(command.ext).subject or ""
        account = next((one for one in self._accounts() if SUBJECT_PREFIX + one.access_key == subject), None)
        if account is None:
            raise Refused(ResponseCode.NO_PERMISSION, "The subject is not exist.")
        document = acl_document(account)
        return command.reply(body=dumps(document) if document["policies"] else b"")

    @handles(RequestCode.AUTH_LIST_ACL)
    def list_acls(self, command: Command, connection: Connection) -> Command:
        request = AclFilter.read(command.ext)
        subject, resource = (request.subject_filter or "").strip(), (request.resource_filter or "").strip()
        found = [acl_document(one, resource) for one in self._accounts() if subject in SUBJECT_PREFIX + one.access_key]
        return command.reply(body=dumps([one for one in found if one["policies"]]))

    @handles(*ACCOUNT_CHANGES)
    def refuse_change(self, command: Command, connection: Connection) -> Command:
        """Refuse a change of accounts or permissions."""
        if self._guard is None:
            return command.reply(ResponseCode.NO_PERMISSION, ACCESS_CONTROL_OFF)
        return command.reply(
            ResponseCode.NO_PERMISSION,
            f"accounts are stored in {self._guard.file.path} (aclFile), which this broker only reads: "
            "change them there, and every server that reads the file follows within seconds",
        )

    def _accounts(self) -> list[Account]:
        if self._guard is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, ACCESS_CONTROL_OFF)
        return list(self._guard.file.accounts.by_key.values())


def user_document(account: Account) -> dict[str, str]:
    """Return an account in the format of Java's UserInfo bean, without its password."""
    return {
        "userStatus": "enable",
        "userType": "Super" if account.is_admin else "Normal",
        "username": account.access_key,
    }


def acl_document(account: Account, part: str = "") -> dict[str, Any]:
    """Return permissions in the format of Java's AclInfo bean, for resources whose names contain ``part``."""
    custom = [_entry(f"Topic:{name}", permission) for name, permission in sorted(account.topics.items())]
    custom += [_entry(f"Group:{name}", permission) for name, permission in sorted(account.groups.items())]
    defaults = (("Topic:*", account.default_topic), ("Group:*", account.default_group))
    general = [_entry(resource, permission) for resource, permission in defaults if permission]
    policies = [
        {"entries": kept, "policyType": kind}
        for kind, entries in (("Custom", custom), ("Default", general))
        if (kept := [entry for entry in entries if part in entry["resource"]])
    ]
    return {"policies": policies, "subject": SUBJECT_PREFIX + account.access_key}


def _entry(resource: str, permission: Permission) -> dict[str, Any]:
    actions = [name for name, bit in (("Pub", Permission.PUB), ("Sub", Permission.SUB)) if permission & bit]
    return {
        "actions": actions or ["Pub", "Sub"],
        "decision": "Allow" if actions else "Deny",
        "resource": resource,
    }
