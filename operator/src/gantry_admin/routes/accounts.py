"""The accounts of the broker: its users and their policies, never a password or a key's secret."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from pydantic import Field

from gantry_access import AccessFileError
from gantry_admin.documents import Document
from gantry_admin.errors import Problem
from gantry_admin.guard import Scope
from gantry_admin.relay import Shard, relay_to_shard
from gantry_admin.routes.common import TheSidecar, needs, refusals
from gantry_client import Admin
from gantry_client.errors import BrokerRefused, ClientError
from gantry_wire.codes import ResponseCode
from gantry_wire.commands.accounts import AclInfo, UserInfo

ACCOUNTS_MAX: Final = 1_000
"""The most users of one answer; further users are only counted."""

RULES_MAX: Final = 200
"""The most rules of one user in an answer; further rules are only counted."""

TIMEOUT_S: Final = 3.0
"""How long the broker may take to answer, in seconds."""

ACCESS_CONTROL_OFF: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""The answers of a broker without access control, and of one that is older than RocketMQ 5.3."""

router = APIRouter(tags=["accounts"], dependencies=[needs(Scope.READ)])


class RuleDocument(Document):
    """One rule of a policy."""

    policy: str = Field(description="`Custom`, or `Default` for rules that apply where no custom rule does.")
    resource: str
    actions: list[str]
    source_ips: list[str]
    decision: str


class AccountDocument(Document):
    """One user and its rules."""

    name: str
    type: str = Field(description="`Super` has every permission, `Normal` those of its rules.")
    status: str
    rules: list[RuleDocument]
    rules_left_out: int


class AccountsDocument(Document):
    """The users of a broker."""

    is_access_controlled: bool = Field(description="Whether the broker requires accounts; without, there are none.")
    reason: str = Field(description="The broker's text if it requires none; otherwise empty.")
    accounts: list[AccountDocument]
    left_out: int


@router.get("/v1/accounts", responses=refusals(401, 403, 404, 422, 502, 503, 504))
async def accounts(request: Request, sidecar: TheSidecar, shard: Shard = None) -> AccountsDocument:
    """Return the users of this broker and their policies, without secrets."""
    if (relayed := await relay_to_shard(request, sidecar, shard, AccountsDocument)) is not None:
        return relayed
    sidecar.broker.check_running("accounts are listed by the broker")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            admin, address = await sidecar.client.connect()
            users, policies = await _query(admin, address)
    except TimeoutError as error:
        raise Problem(504, "the broker did not answer in time") from error
    except BrokerRefused as error:
        if error.code not in ACCESS_CONTROL_OFF:
            raise Problem(502, str(error)[:300]) from error
        return AccountsDocument(is_access_controlled=False, reason=(error.remark or "")[:300], accounts=[], left_out=0)
    except (ClientError, AccessFileError) as error:
        raise Problem(502, str(error)[:300]) from error
    by_subject = {(one.subject or "").removeprefix("User:"): one for one in policies}
    documents = [_document(user, by_subject.get(user.username or "")) for user in users[:ACCOUNTS_MAX]]
    left_out = max(len(users) - ACCOUNTS_MAX, 0)
    return AccountsDocument(is_access_controlled=True, reason="", accounts=documents, left_out=left_out)


async def _query(admin: Admin, address: str) -> tuple[list[UserInfo], list[AclInfo]]:
    return await admin.accounts.users(address), await admin.accounts.policies(address)


def _document(user: UserInfo, policies: AclInfo | None) -> AccountDocument:
    """Return the document of one user: its name, type and status, and no other field of it."""
    rules = [
        RuleDocument(
            policy=policy.policy_type or "", resource=entry.resource or "", actions=entry.actions,
            source_ips=entry.source_ips or [], decision=entry.decision or "",
        )
        for policy in (policies.policies if policies is not None else None) or []
        for entry in policy.entries or []
    ]  # fmt: skip
    return AccountDocument(
        name=user.username or "", type=user.user_type or "", status=user.user_status or "", rules=rules[:RULES_MAX],
        rules_left_out=max(len(rules) - RULES_MAX, 0),
    )  # fmt: skip
