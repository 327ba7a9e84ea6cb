"""What a group of brokers should be, and what follows from how it is: values and decisions, nothing that acts.

The operator, the local supervisor and the command line decide by the same functions. Nothing here reads a clock, a
disk or a network, and nothing of ours is imported: whoever observes hands in what was seen.

    manifest            what a group should be, read from a file; the custom resource
    observed, heard     what was seen of it, and when; a broker's own answer as a report
    lease               what has to be remembered, and is in the shard's Lease
    ledger, gate        what is at risk; whether an action may be done now
    ballot              whose promises are enough; who is furthest; how much is lost
    decide, actions     what to do, and what that can be
    explain             what would happen if a master died now
    cluster_objects     names, labels and paths of a group's objects in Kubernetes

Whoever runs a group: ``read_group`` the manifest; fill in an ``Observed``; ``decide``; do each action as its docstring
says, after asking ``may`` once more; write the conditions down; look again.
"""
