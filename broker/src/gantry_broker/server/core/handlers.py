"""Marks the functions that answer requests, and collects them into a table when the broker starts.

    @handles(RequestCode.GET_MIN_OFFSET)
    def find_min_offset(core: BrokerCore, command: Command, connection: Connection) -> Command: ...

A handler is a function of a module, whose first parameter is the object that the handlers of that module work with, or
a method of an object with its own state. The table holds bound handlers, so that a request costs one look-up and one
call. A handler returns its answer, an awaitable of it, or None if there is none. It raises `Refused` to refuse the
request.

Guarantee: each request code has at most one handler. `join_tables` refuses a second one, and the broker does not start.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeVar

from gantry_remoting import Connection
from gantry_wire import Command, RequestCode

Answer = Command | Awaitable[Command | None] | None
Handler = Callable[[Command, Connection], Answer]
HandlerTable = dict[int, Handler]
"""The handlers by request code."""

F = TypeVar("F", bound=Callable[..., Answer])

_MARK: Final = "request_codes"
"""The attribute of a handler function that holds its request codes."""


def handles(*codes: RequestCode) -> Callable[[F], F]:
    """Mark a function or method as the handler of requests with these codes."""

    def mark(function: F) -> F:
        setattr(function, _MARK, codes)
        return function

    return mark


def handlers_in(module: ModuleType, owner: object) -> HandlerTable:
    """Return the handlers that a module defines, with ``owner`` as their first argument."""
    functions = {name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
    return _bind_handlers(functions, owner)


def handlers_of(owner: object) -> HandlerTable:
    """Return the handlers that are methods of an object."""
    return _bind_handlers(vars(type(owner)), owner)


def join_tables(*tables: HandlerTable) -> HandlerTable:
    """Merge tables of handlers into one. Raises ValueError for a code with two handlers."""
    joined: HandlerTable = {}
    for table in tables:
        twice = sorted(joined.keys() & table.keys())
        if twice:
            raise ValueError(f"request code {twice[0]} has two handlers: {joined[twice[0]]} and {table[twice[0]]}")
        joined |= table
    return joined


def _bind_handlers(namespace: Mapping[str, Any], owner: object) -> HandlerTable:
    tables: list[HandlerTable] = []
    for function in namespace.values():
        if isinstance(function, FunctionType):
            tables += [{int(code): MethodType(function, owner)} for code in getattr(function, _MARK, ())]
    return join_tables(*tables)
