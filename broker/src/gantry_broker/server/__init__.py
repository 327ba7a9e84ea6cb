"""Requests: what comes in at a port, what is decided about it, and what goes out again."""
