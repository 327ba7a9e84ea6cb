"""What was decided, done: each type of ``gantry_spec.actions`` as calls to Kubernetes or orders to a sidecar.

applying      what should exist, applied when it has changed, and now and then for whoever has changed it
leftovers     what the group has no more, deleted: a closed way in, replaced name servers
group_secret  the one with tokens, created wherever it may lack
leases        the shard's record, by compare-and-swap
pods          start, restart, remove, replace a disk: always the one that is meant, by its uid
labels        who is found under which role; taken from the old master first
wishes        orders of people, taken off the group when they are done
scheduler     all of it, one thing at a time for each broker, none waiting for another
"""
