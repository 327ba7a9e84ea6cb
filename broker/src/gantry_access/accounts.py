"""Reads a file of accounts in RocketMQ's format, strictly.

    globalWhiteRemoteAddresses:        peers with every permission, without a signature
      - 10.10.103.*
    accounts:
      - accessKey: orders              more than 6 characters, as in RocketMQ
        secretKey: ...
        whiteRemoteAddress:            peers that need no signature for this account
        admin: false
        defaultTopicPerm: DENY         DENY, PUB, SUB, PUB|SUB
        defaultGroupPerm: SUB
        topicPerms:
          - orders=PUB|SUB
        groupPerms:
          - billing=SUB

RocketMQ ignores what it does not understand, so that half of a file may define the permissions. Here an unknown field,
a duplicate account, or an invalid permission refuses the whole file, and the error names the file, account and field.

Two more rules are stricter than RocketMQ's: a peer that is trusted by `whiteRemoteAddress` has the permissions of its
account, not all permissions; and an administrator with further permissions is refused, because RocketMQ would ignore
`admin` for most of them. `addresses` has the rules for addresses.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, final

from gantry_access.account import Account
from gantry_access.addresses import AddressPatterns, read_patterns
from gantry_access.errors import AccessFileError
from gantry_access.permissions import Permission
from gantry_access.settings import AccessMode
from gantry_wire import names

if TYPE_CHECKING:
    from gantry_access.plain_yaml import Node

KEY_CHARACTERS_MIN: Final = 7
"""The minimum length of access key and secret; RocketMQ requires more than 6 characters."""

ACCOUNTS_MAX: Final = 100_000
"""Limit of the accounts in one file."""

_PERMISSIONS: Final = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}
_TOP: Final = frozenset({"globalWhiteRemoteAddresses", "accounts"})
"""The fields that a file may have."""
_PERMISSION_FIELDS: Final = ("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms")
"""The fields of an account that an administrator must not have."""
_ACCOUNT: Final = frozenset({"accessKey", "secretKey", "whiteRemoteAddress", "admin", *_PERMISSION_FIELDS})
"""The fields that an account may have."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Accounts:
    """All accounts of a file. It is replaced as a whole when the file changes."""

    by_key: Mapping[str, Account] = field(default_factory=dict)
    """The accounts by access key."""

    trusted_addresses: AddressPatterns = field(default_factory=AddressPatterns)
    """Peers that have every permission without a signature."""

    disabled: Mapping[str, Account] = field(default_factory=dict)
    """Accounts that exist, but whose requests are denied."""

    def __repr__(self) -> str:
        return f"<Accounts {len(self.by_key)}>"


class AccountSource(Protocol):
    """Where a guard finds the accounts of a server."""

    @property
    def accounts(self) -> Accounts:
        """The present accounts, replaced as a whole when they change."""
        ...


def read_accounts(data: bytes, file: str, mode: AccessMode) -> Accounts:
    """Parse the accounts of a file. Raises AccessFileError that names the file and the fault."""
    try:
        return _accounts(read_document(data), mode)
    except AccessFileError as error:
        raise AccessFileError(f"{file}: {error}") from error


def read_file(path: str, bytes_max: int, *, waits: bool = False) -> bytes:
    """Read a file. Raises AccessFileError that names it.

    Only with ``waits`` does it wait for the writer of a pipe: in a server that would block a thread for ever.
    """
    extra = 0 if waits else os.O_NONBLOCK
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as file:
            data = file.read(bytes_max + 1) or b""
    except OSError as error:
        raise AccessFileError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > bytes_max:
        raise AccessFileError(f"{path}: is larger than {bytes_max} bytes")
    return data


def read_document(data: bytes) -> dict[str, Node]:
    """Parse the mapping in a file. Raises AccessFileError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AccessFileError("is not UTF-8") from error
    # A server without such a file starts without the YAML parser, whose import takes a fifteenth of a broker's start.
    from gantry_access.plain_yaml import read_plain_yaml

    document = read_plain_yaml(text)
    if not isinstance(document, dict):
        raise AccessFileError("holds no fields")
    return document


def _accounts(document: dict[str, Node], mode: AccessMode) -> Accounts:
    _check_fields(document, _TOP, "")
    white = document.get("globalWhiteRemoteAddresses")
    trusted_addresses = AddressPatterns()
    for number, text in enumerate(_texts(white, "globalWhiteRemoteAddresses"), start=1):
        trusted_addresses += _patterns(text, f"globalWhiteRemoteAddresses[{number}]", mode)
    entries = document.get("accounts")
    if not isinstance(entries, list) or not entries:
        raise AccessFileError("accounts must be a list of at least one account")
    if len(entries) > ACCOUNTS_MAX:
        raise AccessFileError(f"the file has more than {ACCOUNTS_MAX} accounts")
    by_key: dict[str, Account] = {}
    for number, entry in enumerate(entries, start=1):
        account = _account(entry, number, mode)
        if account.access_key in by_key:
            raise AccessFileError(f"account {number} ({account.access_key}): accessKey is a duplicate")
        by_key[account.access_key] = account
    return Accounts(by_key, trusted_addresses)


def _account(entry: Node, number: int, mode: AccessMode) -> Account:
    if not isinstance(entry, dict):
        raise AccessFileError(f"account {number}: an account must be a mapping with accessKey")
    access_key = _key(entry, "accessKey", f"account {number}")
    where = f"account {number} ({access_key})"
    _check_fields(entry, _ACCOUNT, f"{where}: ")
    secret = _key(entry, "secretKey", where)
    is_admin = _boolean(entry.get("admin"), f"{where}: admin")
    given = [name for name in _PERMISSION_FIELDS if entry.get(name) not in (None, [])]
    if is_admin and given:
        raise AccessFileError(
            f"{where}: {given[0]} beside admin: true; admin accounts already have every permission; "
            "remove one of the two"
        )
    address = entry.get("whiteRemoteAddress")
    patterns = AddressPatterns() if address is None else _patterns(address, f"{where}: whiteRemoteAddress", mode)
    return Account(
        access_key=access_key,
        secret=secret.encode("utf-8", "replace"),
        is_admin=is_admin,
        default_topic=_permission(entry.get("defaultTopicPerm"), f"{where}: defaultTopicPerm"),
        default_group=_permission(entry.get("defaultGroupPerm"), f"{where}: defaultGroupPerm"),
        topics=_permissions(entry.get("topicPerms"), f"{where}: topicPerms", is_group=False),
        groups=_permissions(entry.get("groupPerms"), f"{where}: groupPerms", is_group=True),
        addresses=patterns,
    )


def _key(entry: Mapping[str, Node], name: str, where: str) -> str:
    """Return an access key or a secret. Errors do not contain its value."""
    value = entry.get(name)
    if value is None:
        raise AccessFileError(f"{where}: {name} is missing")
    if not isinstance(value, str) or len(value) < KEY_CHARACTERS_MIN:
        raise AccessFileError(f"{where}: {name} must be a string of at least {KEY_CHARACTERS_MIN} characters")
    if value != value.strip():
        raise AccessFileError(f"{where}: {name} begins or ends with a space")
    return value


def _boolean(value: Node, where: str) -> bool:
    if value is None:
        return False
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise AccessFileError(f"{where} must be true or false")


def _permission(value: Node, where: str) -> Permission:
    if value is None:
        return Permission.DENY
    found = _PERMISSIONS.get(value.replace(" ", "")) if isinstance(value, str) else None
    if found is None:
        raise AccessFileError(f"{where} must be one of {', '.join(_PERMISSIONS)}")
    return found


def _permissions(value: Node, where: str, *, is_group: bool) -> dict[str, Permission]:
    """Parse a list of `name=PERMISSION` entries."""
    found: dict[str, Permission] = {}
    for number, text in enumerate(_texts(value, where), start=1):
        place = f"{where}[{number}]"
        name, separator, permission = (part.strip() for part in text.partition("="))
        if not separator:
            raise AccessFileError(f"{place}: expected name=PERMISSION, for example orders=PUB|SUB")
        _check_name(name, place, is_group=is_group)
        if name in found:
            raise AccessFileError(f"{place}: {name} is a duplicate")
        found[name] = _permission(permission, place)
    return found


def _check_name(name: str, where: str, *, is_group: bool) -> None:
    fault = names.group_fault(name) if is_group else names.topic_fault(name)
    if fault is not None:
        raise AccessFileError(f"{where}: invalid {'group' if is_group else 'topic'}: {fault.value}")
    if name.startswith(names.RETRY_PREFIX):
        group = name[len(names.RETRY_PREFIX) :]
        raise AccessFileError(f"{where}: a retry topic belongs to its group; use {group} in groupPerms instead")


def _patterns(value: Node, where: str, mode: AccessMode) -> AddressPatterns:
    if not isinstance(value, str):
        raise AccessFileError(f"{where} must be a string")
    if mode is AccessMode.STRICT:
        raise AccessFileError(f"{where}: aclMode=STRICT trusts no addresses; remove it")
    try:
        return read_patterns(value)
    except ValueError as error:
        raise AccessFileError(f"{where}: {value} {error}") from error


def _texts(value: Node, where: str) -> list[str]:
    """Return a list of strings; an empty list for a field that is empty or absent."""
    if value is None:
        return []
    if isinstance(value, list):
        texts = [item for item in value if isinstance(item, str)]
        if len(texts) == len(value):
            return texts
    raise AccessFileError(f"{where} must be a list of strings")


def _check_fields(entry: Iterable[str], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(entry) - known)
    if unknown:
        raise AccessFileError(f"{where}unknown field {unknown[0][:64]!r}; expected one of {', '.join(sorted(known))}")
