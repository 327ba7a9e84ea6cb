"""The data plane of Gantry: the durable log, its ports (disk, write buffers, clock), and the request handlers above it.

The layers, lowest first, each of which imports only lower ones: ``ports``, ``store``, ``ha``, ``server``, ``app``. The
test kit has implementations of the ports that fail on purpose; only tests import it.
"""
