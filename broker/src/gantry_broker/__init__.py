"""The data plane of Gantry: the durable log, its ports to disk, clock and net, and the request handlers above it.

Floors, lowest first, each importing only what is below it: ``ports``, ``store``, ``ha``, ``server``, ``app``.
``testing`` holds the twins of the ports that fail on purpose; nothing outside tests imports it.
"""
