"""Read-only inspection of a store: summary, verification, dump, and the plan of the next start.

All modules read through the port ``ports.reading``, which cannot write. ``inspect_store`` summarizes a store,
``Verifier`` checks it, ``dump_log`` and ``dump_queue`` list its records, and ``RepairPlanner`` plans what a start would
do. Each returns values, and prints nothing.
"""
