"""RocketMQ's own replication stream, in both directions, to migrate a group from RocketMQ or back to it.

The stream has no identity, no history and no proof: any peer that sends eight bytes is a slave, and two logs that
differ continue to differ unnoticed. So it is a package of its own, is off unless a setting enables it, and checks
everything that one side alone can check: every offset, every record, and that the log it continues ends with the same
bytes as the other.
"""
