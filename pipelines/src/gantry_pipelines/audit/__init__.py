"""Is what is stored on every copy of a broker's log the same, whole, and found by its queues?

    spans of the copies -> chunks -> a task for each: checksums, and where they differ, records -> what goes over chunks
         planning                       chunk: comparing, walking, indexing                           concluding

The rule it guards: **a finding is a fault.** What may still change (not confirmed on every copy), and what a copy was
right to delete, is said and is no finding; what could not be looked at makes the audit one that could not be done.
Nothing here needs Spark but `spark_tasks`; a task is a function of plain values.
"""
