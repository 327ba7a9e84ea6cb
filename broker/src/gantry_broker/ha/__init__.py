"""Replication: streams between masters and slaves, acknowledgement, and the files of promises and roles."""
