"""Looking at a store without touching it: what is here, is it whole, what is in it, what would a start do.

Pure readers over the port ``ports.reading``, which cannot write. ``inspect_store``, ``Verifier``, ``dump_log``
with ``dump_queue`` and ``RepairPlanner`` answer the four questions; each returns values, and prints nothing.
"""
