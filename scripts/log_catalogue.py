"""Write docs/logs.md: every warning and error that Gantry logs, what it means, and what an administrator should do.

The events are read from the source, as calls of a logger. Their explanations are in `docs/logs.toml`, by the text of
the event. An event without an explanation, an explanation without an event, and a text that is no literal are errors.
`make format` writes the page, and the docs test fails when it is stale.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, final

LEVELS: Final = {"warning": "warning", "error": "error", "exception": "error", "critical": "error"}
"""The level of a record by the method of the logger."""

LEVEL_CONSTANTS: Final = {"WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}
"""The level of a record by the constant that is passed to `log`."""

QUIET_CONSTANTS: Final = frozenset({"DEBUG", "INFO"})
"""The constants of levels that are not in the page."""

SOURCES: Final = ("broker/src", "operator/src", "pipelines/src")
FORWARDERS: Final = frozenset({"gantry_remoting.close_log"})
"""Modules whose loggers pass on the texts of their callers."""

COMPONENTS: Final = {
    "Broker": ("gantry_broker",),
    "Name server": ("gantry_nameserver",),
    "Connections, certificates and accounts": ("gantry_remoting", "gantry_access", "gantry_wire", "gantry_status"),
    "Client": ("gantry_client",),
    "gRPC proxy": ("gantry_proxy",),
    "Sidecar": ("gantry_admin",),
    "Operator": ("gantry_operator", "gantry_spec"),
    "Command line": ("gantry_cli",),
    "Spark source": ("pyspark_rocketmq",),
    "Pipelines": ("gantry_pipelines",),
}
"""The packages of each section of the page."""

BEGINNING: Final = """# Log messages

This page lists every warning and error that Gantry logs, by component. Search it for the text of the line; the fields
that come with a line (`extra`) name the broker, offset, file or peer. One event always has the same text.

`error` means that something is lost, refused or needs you; `warning` means that Gantry recovers by itself and that you
may want to know. The page is written by `make format` from the source and from `docs/logs.toml`.
"""
"""The text before the first section of the page."""


class CatalogueError(Exception):
    """The source and the explanations do not agree; the text names the differences."""


@final
class LogEvent(NamedTuple):
    """One call of a logger with one text."""

    text: str
    level: str
    module: str


class _Call(NamedTuple):
    """A call of a logger: its level, and the expression of its text."""

    level: str
    message: ast.expr


def events_in(module: str, source: str) -> Iterator[LogEvent]:
    """Yield the warnings and errors that a module logs. Raises CatalogueError for a text that is no literal."""
    tree = ast.parse(source)
    enclosing = {
        child: node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.walk(node)
    }  # an inner function is walked after the one around it, so the innermost one stays
    for node in ast.walk(tree):
        call = _logging_call(node)
        if call is None or module in FORWARDERS:
            continue
        texts = _literals(call.message, enclosing.get(node), tree)
        if not texts:
            raise CatalogueError(f"{module}:{call.message.lineno}: the text of a log event must be a literal")
        for text in texts:
            yield LogEvent(text, call.level, module)


def _logging_call(node: ast.AST) -> _Call | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return None
    receiver = ast.unparse(node.func.value).rsplit(".", 1)[-1].lstrip("_")
    if node.func.attr in LEVELS and receiver in ("log", "logger"):
        return _Call(LEVELS[node.func.attr], node.args[0])
    if len(node.args) < 2:
        return None
    level = node.args[0]
    if isinstance(level, ast.Attribute) and ast.unparse(level.value) == "logging":
        return _Call(LEVEL_CONSTANTS[level.attr], node.args[1]) if level.attr in LEVEL_CONSTANTS else None
    if node.func.attr == "log" and receiver in ("log", "logger"):
        named = {
            part.attr
            for part in ast.walk(level)
            if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "logging"
        }
        return None if named and named <= QUIET_CONSTANTS else _Call("warning", node.args[1])
    return None


def _literals(message: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef | None, tree: ast.Module) -> set[str]:
    """Resolve a text: a literal, a choice of two, a variable of the function, or its parameter at all of its calls."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        return {message.value}
    if isinstance(message, ast.IfExp):
        both = [_literals(one, function, tree) for one in (message.body, message.orelse)]
        return both[0] | both[1] if all(both) else set()
    if not isinstance(message, ast.Name):
        return set()
    for scope in (function, tree):
        if scope is not None and (assigned := _values_of(message.id, scope)):
            return set[str]().union(*(_literals(one, None, tree) for one in assigned))
    if function is None:
        return set()
    parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
    if message.id not in parameters:
        return set()
    place = parameters.index(message.id)
    calls = [
        node.args[place]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rsplit(".", 1)[-1] == function.name
        and len(node.args) > place
    ]
    return set[str]().union(*(_literals(one, None, tree) for one in calls))


def _values_of(name: str, scope: ast.AST) -> list[ast.expr]:
    """Return what is assigned to a variable in a function, or to a constant of a module."""
    return [
        node.value
        for node in (scope.body if isinstance(scope, ast.Module) else ast.walk(scope))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and [ast.unparse(one) for one in (node.targets if isinstance(node, ast.Assign) else [node.target])] == [name]
    ]


def events_of(root: Path) -> list[LogEvent]:
    """Read the events of the whole source."""
    found: list[LogEvent] = []
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            module = ".".join(path.relative_to(root / folder).with_suffix("").parts)
            found += events_in(module, path.read_text(encoding="utf-8"))
    return found


def explanations_of(root: Path) -> dict[str, dict[str, str]]:
    """Read the explanations: `meaning` and `action` by the text of the event."""
    found: dict[str, dict[str, str]] = tomllib.loads((root / "docs" / "logs.toml").read_text(encoding="utf-8"))
    return found


def disagreements(events: Iterable[LogEvent], explanations: dict[str, dict[str, str]]) -> list[str]:
    """Describe the events without an explanation, the explanations without an event, and those that lack a part."""
    texts = {event.text for event in events}
    return [
        *(f"no explanation of the log event {text!r}" for text in sorted(texts - explanations.keys())),
        *(f"no log event has the text {text!r}" for text in sorted(explanations.keys() - texts)),
        *(
            f"the explanation of {text!r} needs a meaning and an action"
            for text, parts in sorted(explanations.items())
            if set(parts) != {"meaning", "action"} or not all(part.strip() for part in parts.values())
        ),
    ]


def page(root: Path) -> str:
    """Return docs/logs.md as it should be. Raises CatalogueError when source and explanations do not agree."""
    events, explanations = events_of(root), explanations_of(root)
    if problems := disagreements(events, explanations):
        raise CatalogueError("docs/logs.toml: " + "; ".join(problems))
    parts = [BEGINNING]
    for component, packages in COMPONENTS.items():
        levels: dict[str, set[str]] = defaultdict(set)
        for event in events:
            if event.module.split(".")[0] in packages:
                levels[event.text].add(event.level)
        if levels:
            rows = [_row(text, levels[text], explanations[text]) for text in sorted(levels, key=str.casefold)]
            header = "| message | level | meaning | what to do |\n|---|---|---|---|"
            parts.append("\n".join((f"## {component}\n", header, *rows)) + "\n")
    return "\n".join(parts)


def _row(text: str, levels: set[str], explanation: dict[str, str]) -> str:
    cells = (f"`{text}`", ", ".join(sorted(levels)), explanation["meaning"], explanation["action"])
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
