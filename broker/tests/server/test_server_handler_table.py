"""The table of request handlers: marked functions, collected once, exactly one for each code."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from gantry_broker import server
from gantry_broker.server.admin.unsupported import UNSUPPORTED
from gantry_broker.server.core.handlers import handlers_in, handlers_of, handles, join_tables
from gantry_broker.server.send.handlers import SEND_CODES
from gantry_remoting import Connection
from gantry_testing.local import running_broker
from gantry_wire import Command, RequestCode


def marked_codes(module: ModuleType) -> Iterator[int]:
    """The codes of each marked function and method that a module defines."""
    own = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
    methods = [method for one in own if isinstance(one, type) for method in vars(one).values()]
    for function in (*own, *methods):
        if isinstance(function, FunctionType):
            yield from map(int, getattr(function, "request_codes", ()))


async def test_every_code_has_exactly_one_handler(tmp_path: Path) -> None:
    """A handler is marked once, refused codes have none, and no marked one is left out of the broker's table."""
    modules = [
        importlib.import_module(one.name) for one in pkgutil.walk_packages(server.__path__, "gantry_broker.server.")
    ]
    counts = Counter(code for module in modules for code in marked_codes(module))

    assert {code for code, count in counts.items() if count > 1} == set()
    assert len(counts) > 60
    assert not counts.keys() & {*map(int, UNSUPPORTED), *map(int, SEND_CODES)}
    async with running_broker(tmp_path) as broker:
        assert broker.listeners.codes == counts.keys() | {*map(int, UNSUPPORTED), *map(int, SEND_CODES)}


class Answers:
    """A handler with a state of its own."""

    @handles(RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    def answer(self, command: Command, connection: Connection) -> Command:
        return command.reply(remark=f"{type(self).__name__} {command.code}")

    def help(self) -> None:
        """Not marked, and so no handler."""


@handles(RequestCode.HEART_BEAT)
def answer_greeting(owner: str, command: Command, connection: Connection) -> Command:
    return command.reply(remark=owner)


def test_handlers_are_bound_to_their_owner() -> None:
    """A function gets the owner that its module is collected with, a method its object."""
    module = importlib.import_module(__name__)
    table = join_tables(handlers_in(module, "owner"), handlers_of(Answers()))

    assert table.keys() == {RequestCode.HEART_BEAT, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET}
    for code, remark in ((RequestCode.HEART_BEAT, "owner"), (RequestCode.GET_MAX_OFFSET, "Answers 30")):
        answer = table[code](Command(code=code), None)  # type: ignore[arg-type]
        assert isinstance(answer, Command)
        assert answer.remark == remark


def test_second_handler_of_a_code_is_refused() -> None:
    """The broker does not start with it, and the error names both."""
    with pytest.raises(ValueError, match=r"request code 30 has two handlers: .*Answers.* and .*Answers"):
        join_tables(handlers_of(Answers()), handlers_of(Answers()))
