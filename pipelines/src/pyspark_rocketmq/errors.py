"""What can go wrong with a read, by who has to act.

Spark shows the text of an error and little else, so each says what happened, where, and what to do.
"""

from typing import final


class RocketMQSourceError(Exception):
    """The root of all errors of the source and the sink."""


@final
class InvalidOption(RocketMQSourceError):
    """An option is missing, misspelled, or contradicts another one: mend the query."""


@final
class NoReplica(RocketMQSourceError):
    """No replica answered in time: look at the brokers, then start the query again; nothing was lost."""


@final
class DataLost(RocketMQSourceError):
    """Messages that the query had yet to read are gone: decide, then use failOnDataLoss=false, or another start."""


@final
class LogForked(RocketMQSourceError):
    """A newer epoch begins below what was read already: what was read and is no more there is named."""


@final
class DamagedRecord(RocketMQSourceError):
    """A record is not what its queue's unit says: audit that replica (`gantry pipeline audit`)."""


@final
class Refused(RocketMQSourceError):
    """A broker or a sidecar refuses us: look at credentials and rights."""
