"""The topics of a broker as name servers are told them."""

from __future__ import annotations

import msgspec

from gantry_broker.server.core.topics import PERM_WRITE
from gantry_wire.commands.admin import TopicConfigTable


def told_topics(own: TopicConfigTable, epoch: int, *, is_withdrawn: bool) -> TopicConfigTable:
    """With the epoch, which says which of two masters is the newer one. A master that leaves is sent nothing more."""
    version = msgspec.structs.replace(own.data_version, state_version=epoch)
    topics = own.topic_config_table
    if is_withdrawn:
        # A table is taken when its version is another one: this one is never that of a table with everything in it.
        version = msgspec.structs.replace(version, counter=-1 - version.counter)
        topics = {name: msgspec.structs.replace(one, perm=one.perm & ~PERM_WRITE) for name, one in topics.items()}
    return msgspec.structs.replace(own, data_version=version, topic_config_table=topics)
