"""The modes of consumer groups: whether a group reads a topic by pull or by pop. Groups pull unless a mode is set.

Owned by the event loop; written to disk by `persist.py`, and copied to slaves.
"""

from typing import Final, final

from gantry_wire.commands.pop import MessageRequestMode, MessageRequestModes

MODE_TABLE: Final = "messageRequestMode"
"""The name of the table's file."""


@final
class RequestModes:
    """The modes by topic and group."""

    def __init__(self) -> None:
        self._table: dict[str, dict[str, MessageRequestMode]] = {}

    def __repr__(self) -> str:
        return f"<RequestModes topics={len(self._table)}>"

    def find(self, topic: str, group: str) -> MessageRequestMode | None:
        """Return the mode that was set for a group in a topic."""
        return self._table.get(topic, {}).get(group)

    def put(self, mode: MessageRequestMode) -> None:
        """Set the mode of a group in a topic."""
        self._table.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def document(self) -> MessageRequestModes:
        """Return the content of the table's file, and of the reply to code 402."""
        return MessageRequestModes(
            message_request_mode_map={topic: dict(groups) for topic, groups in self._table.items()}
        )

    def load(self, document: MessageRequestModes) -> None:
        """Replace the table by that of a file, or of a master."""
        self._table = {topic: dict(groups) for topic, groups in document.message_request_mode_map.items()}
