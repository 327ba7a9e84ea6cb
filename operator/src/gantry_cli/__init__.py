"""The command line: `gantry up`, `status`, `produce`, `consume`, `topic` and the rest.

A face, not a part: everything it knows of a cluster it asks through `gantry_client`, and servers are started as
processes. Commands are imported when they are called, so that `gantry --help` is quick.
"""
