"""The command `gantry status`: a cluster as tables, or one broker by its status page."""
