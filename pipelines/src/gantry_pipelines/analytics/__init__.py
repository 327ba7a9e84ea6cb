"""Statistics of topics by time window: rates, latencies, hot queues and keys, and consumer lag.

    messages -> transforms (pure) -> tables, one folder each -> a report of one file

A message belongs to the window of its store time. Only closed windows (whose watermark has passed) are written, and a
window that is written again replaces the previous rows, so that repeating a run changes nothing.
"""
