"""RocketMQ's own replication stream, both ways: the door through which a group comes from there, or goes back.

It has no identity, no history and no proof: any peer that sends eight bytes is a slave, and two logs that differ go on
differing in silence. So it is a package of its own, is off unless chosen by name, and checks what can be checked from
one end alone: every offset, every record, and that a log that is continued ends with the very bytes of the other.
"""
