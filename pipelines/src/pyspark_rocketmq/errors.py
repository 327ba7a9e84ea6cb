"""The errors of reads and writes; the docstring of each names the remedy.

Spark shows the text of an error and little else, so each text says what happened, where, and what to do.
"""

from typing import final


class RocketMQSourceError(Exception):
    """The root of all errors of the source and the sink."""


@final
class InvalidOption(RocketMQSourceError):
    """An option is missing, misspelled, or contradicts another one: correct the query."""


@final
class NoReplica(RocketMQSourceError):
    """No replica answered in time: check the brokers, then start the query again; nothing was lost."""


@final
class DataLost(RocketMQSourceError):
    """Messages that the query had yet to read were deleted, or a queue ends before a message that was read: accept the
    loss with failOnDataLoss=false, or choose another start."""


@final
class LogForked(RocketMQSourceError):
    """Messages that were read are no longer part of the log: correct what was derived from them, then continue with
    failOnDataLoss=false."""


@final
class DamagedRecord(RocketMQSourceError):
    """A record is not the one that its queue unit describes: audit that replica (`gantry pipeline audit`)."""


@final
class Refused(RocketMQSourceError):
    """A broker or a sidecar denied access: check credentials and permissions."""


@final
class InvalidRow(RocketMQSourceError):
    """A row cannot become a message: correct the query that makes it.

    The error names the row's number in its task and, where only one is wrong, the column.
    """


@final
class NotStored(RocketMQSourceError):
    """Messages were not stored, or less safely than the mode promises: check the brokers, then repeat the write."""


@final
class NotTransactional(RocketMQSourceError):
    """A broker would store a message twice if its commit is repeated: write to Gantry brokers, or without the option
    transactional."""


@final
class BatchForgotten(RocketMQSourceError):
    """Markers have expired, so it is unknown whether this batch was committed: search the topic
    for its rows, then set onForgottenBatch."""


@final
class BatchTorn(RocketMQSourceError):
    """Half messages of a decided batch expired before they were committed, or its marker cannot be read: search the
    topic for its rows, and write the missing ones again."""
