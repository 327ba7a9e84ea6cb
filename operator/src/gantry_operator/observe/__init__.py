"""From what watches and sidecars report to ``gantry_spec.observed``: facts with their times, and no judgement.

pods, machines     what one object shows of a process, a machine, a disk; pure
group_objects      what the caches have of one group, by shard and member
memory             what has to be remembered between observations: when something was first seen
last_word          the last word of a master, kept in the Lease over restarts of this process
group_observer     all of it put together for one group
"""
