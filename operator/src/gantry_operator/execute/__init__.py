"""Execution of decisions: each type of ``gantry_spec.actions`` becomes calls to Kubernetes or orders to a sidecar.

applier       applies the desired objects when they have changed, and regularly to revert changes by others
pruner        deletes objects that the group no longer needs: an external Service, name servers, a removed shard
leases        writes a shard's record, by compare-and-swap
pods          restarts, removes and hibernates pods, and replaces disks: always with the uid of the object
role_labels   sets the role labels of pods; the label of the old master is removed first
scheduler     runs all actions: one at a time for each broker, without waiting for other brokers
"""
