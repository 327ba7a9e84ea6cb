"""The specification of a broker group and the decisions about it: pure values and functions without side effects.

The operator, the local supervisor and the command line use the same decision functions. This package reads no clock or
network, and no file except its own source (``manifest.struct_fields``). Of the project it imports only
``gantry_status``, which has values and pure functions: the caller observes the group and passes in the result.

    manifest            the desired state of a group, read from a file; the custom resource
    pipelines           the resources of pipelines: their fields, rules and status
    observed            the observed state of a group with its times; a broker's answer as a report
    lease               the durable record of a shard's epochs and terms, stored in its Lease
    lease_annotations   that record as annotations of the Lease in Kubernetes
    ledger, gate        the acknowledged bytes at risk; whether an action is allowed now
    ballot              the count of promises in an election, the winner and the loss
    decide, actions     the decisions, and the actions that they consist of
    executor            the mapping from actions to orders, and the ports that carry them out
    role_recovery       whether a broker may have its role again after its process was restarted
    explain             a forecast of what would happen if a master failed now
    broker_conf         the ``broker.conf`` of a member, made from the spec
    cluster_objects     names, labels and paths of a group's objects in Kubernetes
    sidecar_proof       the proof that a certificate belongs to a sidecar

The loop that runs a group: read the manifest (``read_group``), fill in an ``ObservedGroup``, call ``decide``, which has
already checked each action with ``check_action``, execute the actions as their docstrings describe, write the
conditions, and observe again."""
