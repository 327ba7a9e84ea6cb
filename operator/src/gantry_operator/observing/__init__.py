"""From what watches and sidecars show to ``gantry_spec.observed``: facts with their times, and no judgement.

pods, volumes, machines    what one object says of a process, a disk, a machine; pure
memory                     what has to be remembered between looks: when something was first seen
words                      the last word of a master, kept in the Lease over restarts of this process
look                       all of it put together for one group
"""
