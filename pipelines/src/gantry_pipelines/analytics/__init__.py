"""How topics were used, by window: rates, latencies, hot queues and keys, and how far consumers are behind.

    messages -> transforms (pure) -> tables, one folder each -> a report of one file

Windows count by the time at which the broker stored a message. Only windows that are closed are written, and a window
that is written again replaces what was there: a run that is repeated changes nothing.
"""
