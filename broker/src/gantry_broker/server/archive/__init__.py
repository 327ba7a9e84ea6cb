"""Messages that the log does not have any more, from an archive: the link to its server, reads, and what must be kept.

pull below the log's first message -> `reads` -> `link` -> `connection` -> archive server (`gantry pipeline serve`)
retention -> `unarchived`: nothing is deleted that is to be archived and is not yet
"""
