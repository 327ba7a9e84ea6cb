"""One message: its body alone, a line with everything, or a document for programs."""

import base64
from collections.abc import Callable

from gantry_cli.documents import MessageDocument
from gantry_cli.text import time_text
from gantry_client import ReceivedMessage, UnreadableBody

Write = Callable[[ReceivedMessage], str]


def body_text(message: ReceivedMessage) -> str:
    """The body; bytes that are no UTF-8 are escaped, so that they cannot upset a terminal's encoding."""
    try:
        return message.body.decode("utf-8", "backslashreplace")
    except UnreadableBody as error:
        return f"<{error}>"


def line_text(message: ReceivedMessage) -> str:
    """When and where it was stored, what it is marked with, and the body."""
    queue = message.queue
    marks = [f"tag={message.tags}"] if message.tags else []
    marks += [f"keys={','.join(message.keys)}"] if message.keys else []
    marks += [f"retries={message.reconsume_times}"] if message.reconsume_times else []
    place = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@{message.queue_offset}"
    return "  ".join([time_text(message.store_timestamp_ms), place, *marks, body_text(message)])


def message_document(message: ReceivedMessage) -> MessageDocument:
    """Everything, for programs."""
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
