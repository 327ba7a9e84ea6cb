"""Replication: one master's log on several disks, and the master's role on one of them at a time."""
