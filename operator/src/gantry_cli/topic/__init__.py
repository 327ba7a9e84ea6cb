"""`gantry topic`: topics, their settings, and the order of their queues."""
