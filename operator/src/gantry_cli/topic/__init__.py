"""`gantry topic`: topics, their settings, and their order configuration."""
