"""How messages are printed: `--output`, `--format` and `--verbose` of the commands that read messages, decided here.

A template is text with fields in braces, `{body}` or `{json.order.id}`; `{{` and `}}` are braces, and `\\n`, `\\t` and
`\\\\` are escapes, since a shell does not make them. A field that a message does not have is empty.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
import msgspec

from gantry_cli.errors import InvalidInput
from gantry_cli.messages.documents import MessageDocument
from gantry_cli.messages.places import place_of
from gantry_cli.options import refuse_ignored
from gantry_cli.output import OutputFormat, record_text
from gantry_cli.text import time_text
from gantry_client import ReceivedMessage, UnreadableBody
from gantry_wire.search import SearchFault, parse_steps, value_at
from gantry_wire.search.json_path import MISSING, decode_json

MessageFormatter = Callable[[ReceivedMessage], str | bytes]
"""Returns what is printed for a message, before the end of the line."""

F = TypeVar("F", bound=Callable[..., Any])

FORMAT_HELP: Final = (
    "raw (the bytes of the body), line (time, queue, offset, tag, keys, body), json, hex, or a template such as "
    "'{offset} {key} {json.order.id}' (docs/search.md)."
)


def format_option(command: F) -> F:
    """Add the option --format, which `choose_formatter` interprets."""
    return click.option("--format", "template", metavar="FORMAT", help=f"How to print a message: {FORMAT_HELP}")(
        command
    )


def choose_formatter(form: OutputFormat, template: str | None, *, is_verbose: bool) -> MessageFormatter:
    """Return the formatter for the options of a command. Raises InvalidInput, and click's UsageError."""
    if form.is_document:
        refuse_ignored(f"with --output {form}, which prints all fields", ignored={"verbose", "template"})
        return lambda message: record_text(form, message_document(message))
    if template is None:
        return line_text if is_verbose else body_text
    refuse_ignored("with --format, which says what to print", ignored={"verbose"})
    return parse_format(template)


def parse_format(text: str) -> MessageFormatter:
    """Return the formatter for a value of --format: a name or a template. Raises InvalidInput."""
    named = _FORMATS.get(text)
    if named is not None:
        return named
    if "{" not in text:
        raise InvalidInput(f"--format {text[:64]!r}: expected {', '.join(_FORMATS)}, or a template with a field")
    return _parse_template(text)


def body_text(message: ReceivedMessage) -> str:
    """Return the body as text. Bytes that are not UTF-8 are escaped, so that they cannot disturb the terminal."""
    try:
        return message.body.decode("utf-8", "backslashreplace")
    except UnreadableBody as error:
        return f"<{error}>"


def line_text(message: ReceivedMessage) -> str:
    """Return a message as one line: store time, queue and offset, tag, keys, retries and body."""
    marks = [f"tag={message.tags}"] if message.tags else []
    marks += [f"keys={','.join(message.keys)}"] if message.keys else []
    marks += [f"retries={message.reconsume_times}"] if message.reconsume_times else []
    return "  ".join([time_text(message.store_timestamp_ms), str(place_of(message)), *marks, body_text(message)])


def message_document(message: ReceivedMessage) -> MessageDocument:
    """Return all fields of a message as a document."""
    document = MessageDocument(
        topic=message.topic,
        broker=message.queue.broker_name,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        store_timestamp_ms=message.store_timestamp_ms,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        tags=message.tags,
        keys=list(message.keys),
        reconsume_times=message.reconsume_times,
        properties=dict(message.properties),
    )
    try:
        document.body = message.body.decode()
    except UnicodeDecodeError:
        document.body_base64 = base64.b64encode(message.body).decode()
    except UnreadableBody as error:
        document.body_fault = str(error)
    return document


def _body_bytes(message: ReceivedMessage) -> bytes:
    """Return the body, or the stored bytes of one that cannot be decompressed."""
    return message.stored_body if message.body_fault is not None else message.body


_FORMATS: Final[dict[str, MessageFormatter]] = {
    "raw": _body_bytes,
    "line": line_text,
    "json": lambda message: record_text(OutputFormat.JSON, message_document(message)),
    "hex": lambda message: _body_bytes(message).hex(),
}

# -- templates ---------------------------------------------------------------------------------------------------------

_Field = Callable[[ReceivedMessage], str]

_FIELDS: Final[dict[str, _Field]] = {
    "body": body_text,
    "hex": lambda message: _body_bytes(message).hex(),
    "key": lambda message: message.keys[0] if message.keys else "",
    "keys": lambda message: ",".join(message.keys),
    "tag": lambda message: message.tags or "",
    "id": lambda message: message.message_id,
    "topic": lambda message: message.topic,
    "broker": lambda message: message.queue.broker_name,
    "queue": lambda message: str(message.queue.queue_id),
    "offset": lambda message: str(message.queue_offset),
    "time": lambda message: time_text(message.store_timestamp_ms),
    "time_ms": lambda message: str(message.store_timestamp_ms),
    "retries": lambda message: str(message.reconsume_times),
}
_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\\[nt\\]|[{}]|[^{}\\]+|\\")
_PLAIN: Final = {"{{": "{", "}}": "}", "\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def _parse_template(template: str) -> MessageFormatter:
    """Return the formatter of a template. Raises InvalidInput that names the position of the fault, from 1 on."""
    parts: list[str | _Field] = []
    for found in _PART.finditer(template):
        text, name = found.group(), found.group(1)
        if name is not None:
            parts.append(_parse_field(name, found.start() + 1))
        elif text in "{}":
            raise InvalidInput(f"--format, position {found.start() + 1}: a single {text}; write {text * 2} for a brace")
        else:
            parts.append(_PLAIN.get(text, text))
    return lambda message: "".join(part if isinstance(part, str) else part(message) for part in parts)


def _parse_field(name: str, position: int) -> _Field:
    field = _FIELDS.get(name)
    if field is not None:
        return field
    if name.startswith("property."):
        return lambda message: message.properties.get(name.removeprefix("property."), "")
    if name == "json" or name.startswith(("json.", "json[")):
        try:
            steps = parse_steps("$" + name.removeprefix("json"))
        except SearchFault as fault:
            raise InvalidInput(f"--format, position {position}: {fault}") from fault
        return lambda message: _json_text(value_at(decode_json(_body_bytes(message)), steps))
    known = ", ".join(sorted(_FIELDS))
    raise InvalidInput(
        f"--format, position {position}: unknown field {name[:64]!r}; expected {known}, property.NAME or json.PATH"
    )


def _json_text(value: Any) -> str:
    """Return a value of a JSON document: a text without quotes, anything else as JSON, and nothing if it is missing."""
    if value is MISSING:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
