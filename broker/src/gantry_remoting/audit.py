"""The audit log: one line for each administrator's write, including refused ones.

    2025-01-31 12:00:00,000 INFO gantry.audit {"server":"broker","peer":"192.0.2.7:50412","account":null,
      "what":"DELETE_TOPIC_IN_BROKER","code":215,"on":{"topic":"orders"},"outcome":0,"result":"SUCCESS","reason":null}

The logger's name and the fields are stable, because programs read them. A line is written when the reply is known, in
one place for all requests of a server, so that no handler can omit it. The line is JSON, so that data from a peer
cannot imitate a second line. It contains names and numbers, but not the values of settings and of the key-value table,
nor anything else that could be a secret.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Container, Mapping
from itertools import islice
from typing import Any, Final

from gantry_remoting.addresses import join_address
from gantry_remoting.connection import Connection
from gantry_remoting.server import Answer, Dispatch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.fastjson import loads
from gantry_wire.properties_text import property_lines, split_property

LOGGER: Final = "gantry.audit"
CHARACTERS_MAX: Final = 200
"""The maximum length of one name."""
NAMES_MAX: Final = 20
"""The maximum length of one list."""

FIELDS: Final = (
    "topic", "group", "groupName", "consumerGroup", "producerGroup", "srcGroup", "destGroup", "brokerName",
    "brokerAddr", "clusterName", "namespace", "key", "queueId", "offset", "timestamp", "isForce", "perm",
    "readQueueNums", "writeQueueNums", "username", "subject", "policyType", "resource",
)  # fmt: skip
"""The fields of a request's header that are logged."""

_NAMES: Final = {
    "groupName": "groupName", "topicName": "topic", "subject": "subject", "userType": "userType",
    "userStatus": "userStatus",
}  # fmt: skip
"""For the name fields of documents: the key under which an audit line has them."""
_LISTS: Final = {"groupConfigList": "groupName", "topicConfigList": "topicName"}
"""The lists in request bodies, each with the field that names an entry."""
_PROPERTIES: Final = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    }
)
"""Requests whose body is properties text, of which only the keys are logged."""

log = logging.getLogger(LOGGER)


def write_audit_line(
    server: str, *, peer: str, account: str | None, what: str, code: int | None, on: Mapping[str, Any],
    outcome: int | str | None, reason: str | None,
) -> None:  # fmt: skip
    """Log one attempted change. ``outcome`` is the reply's code or a word, or None if it is unknown."""
    result = ResponseCode(outcome).name if isinstance(outcome, int) and outcome in _RESPONSES else outcome
    line = {
        "server": server, "peer": peer, "account": account, "what": what, "code": code, "on": on,
        "outcome": outcome, "result": result, "reason": None if not reason else reason[: 2 * CHARACTERS_MAX],
    }  # fmt: skip
    log.info("%s", json.dumps(line, separators=(",", ":"), default=str))


_RESPONSES: Final = frozenset(int(code) for code in ResponseCode)


def with_audit_log(
    dispatch: Dispatch,
    server: str,
    codes: Container[int],
    *,
    failure: Callable[[Command, Exception], Command],
    account_of: Callable[[], str | None] = lambda: None,
) -> Dispatch:
    """Return ``dispatch`` with a log line for each request of ``codes``, written when its reply is known.

    An exception becomes the reply that ``failure`` makes of it. ``account_of`` returns the authenticated account of the
    last dispatched request.
    """

    def write_outcome(
        command: Command, connection: Connection, account: str | None, reply: Command | None
    ) -> Command | None:
        write_audit_line(
            server,
            peer=join_address(*connection.peer),
            account=account,
            what=RequestCode(command.code).name,
            code=command.code,
            on=describe_target(command),
            outcome=None if reply is None else int(reply.code),
            reason=None if reply is None else reply.remark,
        )
        return reply

    async def write_outcome_later(
        command: Command, connection: Connection, account: str | None, answer: Awaitable[Command | None]
    ) -> Command | None:
        try:
            reply = await answer
        except Exception as error:  # noqa: BLE001 - the exception becomes the reply to the requester
            reply = failure(command, error)
        return write_outcome(command, connection, account, reply)

    def answer(command: Command, connection: Connection) -> Answer:
        if command.code not in codes:
            return dispatch(command, connection)
        try:
            reply = dispatch(command, connection)
        except Exception as error:  # noqa: BLE001 - the exception becomes the reply to the requester
            reply = failure(command, error)
        account = account_of()
        if reply is None or isinstance(reply, Command):
            return write_outcome(command, connection, account, reply)
        return write_outcome_later(command, connection, account, reply)

    return answer


def describe_target(command: Command) -> dict[str, Any]:
    """Return what a request changes: names from its header and its body. Malformed bytes do not raise."""
    about: dict[str, Any] = {name: truncate(command.ext[name]) for name in FIELDS if name in command.ext}
    if command.code in _PROPERTIES:
        about["keys"] = _property_names(command.body)
    elif command.body[:1] == b"{":
        about.update(_body_names(command.body))
    return about


def _property_names(body: bytes) -> list[str]:
    entries = (split_property(line) for _, line in property_lines(body[: 64 * 1024].decode("utf-8", "replace")))
    return ["not readable" if entry is None else truncate(entry[0]) for entry in islice(entries, NAMES_MAX)]


def _body_names(body: bytes) -> dict[str, Any]:
    try:
        document = loads(body)
    except (ValueError, RecursionError):
        return {"body": "not readable"}
    if not isinstance(document, dict):
        return {}
    about: dict[str, Any] = {shown: truncate(str(document[name])) for name, shown in _NAMES.items() if name in document}
    for name, item_name in _LISTS.items():
        items = document.get(name)
        if isinstance(items, list):
            rows = [item.get(item_name) for item in items[:NAMES_MAX] if isinstance(item, dict)]
            about[name] = [truncate(str(row)) for row in rows]
    resources = _policy_resources(document.get("policies"))
    return {**about, "resources": resources} if resources else about


def _policy_resources(policies: object) -> list[str]:
    """Return the resources of the policies in a request about access control."""
    found: list[str] = []
    for policy in policies if isinstance(policies, list) else ():
        entries = policy.get("entries") if isinstance(policy, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and len(found) < NAMES_MAX:
                found.append(truncate(str(entry.get("resource"))))
    return found


def truncate(text: str) -> str:
    """Return `text`, cut to the maximum length of a name."""
    return text[:CHARACTERS_MAX]


def enable_audit_log() -> None:
    """Write audit lines even if the level of other logs is higher."""
    log.setLevel(logging.INFO)
