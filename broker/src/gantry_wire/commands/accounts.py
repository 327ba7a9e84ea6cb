"""Requests about users and their policies, codes 3001 to 3010.

The bodies are JSON documents with the names of Java's beans. A missing part is None, because the tools omit what they
do not change.
"""

import msgspec

from gantry_wire.commands.clients import Document
from gantry_wire.commands.fields import Fields


class Username(Fields):
    """The request header of codes 3001 to 3004: one user."""

    username: str | None = None


class UserFilter(Fields):
    """The request header of code 3005: a filter for users."""

    filter: str | None = None


class AclSubject(Fields):
    """The request header of codes 3006, 3007 and 3009: the subject of policies."""

    subject: str | None = None


class DeleteAcl(Fields):
    """The request header of code 3008: which policies of a subject are deleted; without a resource all of them."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class AclFilter(Fields):
    """The request header of code 3010: filters for policies."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class UserInfo(Document, omit_defaults=True):
    """One user, as requests have it. Its repr contains no password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"<UserInfo {self.username}>"


class PolicyEntryInfo(Document, omit_defaults=True):
    """One rule of a policy."""

    resource: str | None = None
    actions: list[str] = msgspec.field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Document, omit_defaults=True):
    """The rules of one type, Custom or Default."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Document, omit_defaults=True):
    """The policies of one subject."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
