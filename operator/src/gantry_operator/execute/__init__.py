"""What was decided, executed: each type of ``gantry_spec.actions`` as calls to Kubernetes or orders to a sidecar.

applier       what should exist, applied when it has changed, and now and then for whoever has changed it
leftovers     what the group has no more, deleted: a closed way in, replaced name servers, a removed shard
leases        the shard's record, by compare-and-swap
pods          start, restart, remove, replace a disk: always the one that is meant, by its uid
role_labels   who is found under which role; taken from the old master first
scheduler     all of it, one thing at a time for each broker, none waiting for another
"""
