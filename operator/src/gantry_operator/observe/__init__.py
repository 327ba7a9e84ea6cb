"""Observation: converts reports of watches and sidecars to ``gantry_spec.observed``, as facts with times.

pods, machines     what one object shows of a process, a machine or a disk; pure
group_objects      the cached objects of one group, by shard and member
memory             what is kept between two observations: when a state was first seen, and the newest reports
last_report        the last report of a master, kept in the Lease over restarts of this process
group_observer     the observation of one group, made from all of these
"""
