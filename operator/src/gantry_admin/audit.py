"""The audit log of orders over HTTP: a line for each order, refused ones included, as in the brokers' audit log.

The outcome is the HTTP status, such as 200 done, 409 refused by the broker, 401 and 403 refused by the sidecar; 0 means
aborted, also by an internal error (whose answer is 500). A request whose body or parameters are invalid (422) is no
order, and has no line. A line has names and numbers, never a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastapi import Request

from gantry_admin.errors import Problem
from gantry_admin.guard import Caller
from gantry_remoting import join_address
from gantry_remoting.audit import truncate, write_audit_line

SERVER = "sidecar"
"""The name of this program in audit lines."""


def write_audit(
    request: Request, caller: Caller | None, what: str, on: Mapping[str, object], outcome: int, reason: str
) -> None:
    """Write the audit line of one order."""
    client = request.client
    write_audit_line(
        SERVER,
        peer="unknown" if client is None else join_address(client.host, client.port),
        account=None if caller is None else caller.name,
        what=truncate(what),
        code=None,
        on={name: truncate(value) if isinstance(value, str) else value for name, value in on.items()},
        outcome=f"http {outcome}",
        reason=reason or None,
    )


@contextmanager
def audited(request: Request, caller: Caller, what: str, on: Mapping[str, object]) -> Iterator[None]:
    """Write the audit line, with the outcome, of the order that is executed in the block; ``on`` may grow meanwhile."""
    outcome, reason = 0, "aborted"
    try:
        yield
        outcome, reason = 200, ""
    except Problem as problem:
        outcome, reason = problem.status, problem.reason
        raise
    finally:
        write_audit(request, caller, what, on, outcome, reason)
