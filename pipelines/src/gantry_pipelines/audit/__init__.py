"""Audit: are all copies of a broker's log equal and undamaged, and do the consume queues match the log?

    spans of the copies -> chunks -> a task for each: checksums, and where they differ, records -> checks across chunks
         planning                       chunk: comparing, walking, indexing                           concluding

The invariant: **a finding is a fault.** Data that may still change (not confirmed on every copy), and data that a copy
deleted by retention, is mentioned in a note, not as a finding; if a copy cannot be read at all, the audit fails.
Only `spark_tasks` needs Spark; a task is a function of plain values.
"""
