"""An archive as brokers read it: a server that returns archived messages as records of a log.

request of a broker -> `server` -> `archived_queues`: which file has the offset
                                -> `chunks`: some thousand rows of the file, as `records`, cached
"""
