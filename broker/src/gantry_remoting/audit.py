"""Who changed what: one line for each administrator's write, also for one that was refused.

    2025-01-31 12:00:00,000 INFO gantry.audit {"server":"broker","peer":"192.0.2.7:50412","account":null,
      "what":"DELETE_TOPIC_IN_BROKER","code":215,"on":{"topic":"orders"},"outcome":0,"result":"SUCCESS","reason":null}

The logger's name and the fields stay as they are, for programs read them. A line is written when the answer is known,
in one place for all requests of a server, so that no handler can forget it. It is JSON, so that nothing that a peer
sends can look like a second line. Names and numbers are in it; values of settings and of the key-value table, and
whatever else could be a secret, are not.
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
"""Of one name."""
NAMES_MAX: Final = 20
"""Of one list."""

FIELDS: Final = (
    "topic", "group", "groupName", "consumerGroup", "producerGroup", "srcGroup", "destGroup", "brokerName",
    "brokerAddr", "clusterName", "namespace", "key", "queueId", "offset", "timestamp", "isForce", "perm",
    "readQueueNums", "writeQueueNums",
)  # fmt: skip
"""Of a request's header."""

_NAMES: Final = {"groupName": "groupName", "topicName": "topic"}
_LISTS: Final = {"groupConfigList": "groupName", "topicConfigList": "topicName"}
_PROPERTIES: Final = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})

log = logging.getLogger(LOGGER)


def write_line(
    server: str, *, peer: str, account: str | None, what: str, code: int | None, on: Mapping[str, Any],
    outcome: int | str | None, reason: str | None,
) -> None:  # fmt: skip
    """One change that somebody wanted. ``outcome`` is the answer's code, or a word; None for one that is not known."""
    result = ResponseCode(outcome).name if isinstance(outcome, int) and outcome in _RESPONSES else outcome
    line = {
        "server": server, "peer": peer, "account": account, "what": what, "code": code, "on": on,
        "outcome": outcome, "result": result, "reason": None if not reason else reason[: 2 * CHARACTERS_MAX],
    }  # fmt: skip
    log.info("%s", json.dumps(line, separators=(",", ":"), default=str))


_RESPONSES: Final = frozenset(int(code) for code in ResponseCode)


def audited(
    dispatch: Dispatch,
    server: str,
    codes: Container[int],
    *,
    failure: Callable[[Command, Exception], Command],
    account_of: Callable[[], str | None] = lambda: None,
) -> Dispatch:
    """``dispatch`` with a line for each request of ``codes``, when its answer is known.

    What is raised becomes the answer that ``failure`` makes of it. ``account_of`` says who has sent, provably, the
    request that was dispatched last.
    """

    def known(command: Command, connection: Connection, account: str | None, reply: Command | None) -> Command | None:
        write_line(
            server,
            peer=join_address(*connection.peer),
            account=account,
            what=RequestCode(command.code).name,
            code=command.code,
            on=subject(command),
            outcome=None if reply is None else int(reply.code),
            reason=None if reply is None else reply.remark,
        )
        return reply

    async def later(
        command: Command, connection: Connection, account: str | None, answer: Awaitable[Command | None]
    ) -> Command | None:
        try:
            reply = await answer
        except Exception as error:  # noqa: BLE001 - it becomes the answer, which whoever asked gets
            reply = failure(command, error)
        return known(command, connection, account, reply)

    def answer(command: Command, connection: Connection) -> Answer:
        if command.code not in codes:
            return dispatch(command, connection)
        try:
            reply = dispatch(command, connection)
        except Exception as error:  # noqa: BLE001 - it becomes the answer, which whoever asked gets
            reply = failure(command, error)
        account = account_of()
        if reply is None or isinstance(reply, Command):
            return known(command, connection, account, reply)
        return later(command, connection, account, reply)

    return answer


def subject(command: Command) -> dict[str, Any]:
    """What a request is about: names, from its header and its body. Whatever the bytes are, it does not raise."""
    about: dict[str, Any] = {name: bounded(command.ext[name]) for name in FIELDS if name in command.ext}
    if command.code in _PROPERTIES:
        about["keys"] = _property_names(command.body)
    elif command.body[:1] == b"{":
        about.update(_body_names(command.body))
    return about


def _property_names(body: bytes) -> list[str]:
    entries = (split_property(line) for _, line in property_lines(body[: 64 * 1024].decode("utf-8", "replace")))
    return ["not readable" if entry is None else bounded(entry[0]) for entry in islice(entries, NAMES_MAX)]


def _body_names(body: bytes) -> dict[str, Any]:
    try:
        document = loads(body)
    except (ValueError, RecursionError):
        return {"body": "not readable"}
    if not isinstance(document, dict):
        return {}
    about: dict[str, Any] = {shown: bounded(str(document[name])) for name, shown in _NAMES.items() if name in document}
    for name, item_name in _LISTS.items():
        items = document.get(name)
        if isinstance(items, list):
            rows = [item.get(item_name) for item in items[:NAMES_MAX] if isinstance(item, dict)]
            about[name] = [bounded(str(row)) for row in rows]
    return about


def bounded(text: str) -> str:
    """Short enough for a line."""
    return text[:CHARACTERS_MAX]


def always_log() -> None:
    """Whatever level other logs are written from, these lines are."""
    log.setLevel(logging.INFO)
