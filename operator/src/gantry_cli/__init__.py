"""The command line: `gantry up`, `status`, `produce`, `consume`, `topic` and the rest.

It is a client: it queries clusters through `gantry_client` and starts servers as processes. Commands are imported when
they are called, so that `gantry --help` is fast.
"""
