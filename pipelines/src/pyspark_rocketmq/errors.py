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


@final
class InvalidRow(RocketMQSourceError):
    """A row cannot be a message: mend the query that makes it. Column, and the row's number in its task, are named."""


@final
class NotStored(RocketMQSourceError):
    """A broker did not take messages, or not as safely as its mode promises, for as long as there was patience."""


@final
class NotTransactional(RocketMQSourceError):
    """A broker cannot end a transaction twice and store once: write to Gantry's, or without `transactional`."""


@final
class BatchForgotten(RocketMQSourceError):
    """Markers have expired, so that nobody knows whether this batch was committed: compare, then onForgottenBatch."""


@final
class BatchTorn(RocketMQSourceError):
    """A batch was decided, and some of its messages can be delivered no more: its half messages were away too long."""
