"""Pipelines in Kubernetes: resources that read a group's topics with Spark, each with a loop of its own.

    naming              what objects are called and labelled
    facts               what a group offers to its readers, and what keeps a pipeline from running
    configuration       what the pods' program is told
    pods, rendering     every object of a pipeline, purely
    observed, status    what its pods have reported, and the status, conditions and events that follow; pure
    pages               how far a run is, asked now
    reconciler          one round of one pipeline; `resource_loop` runs it

It is the style of groups (observe, decide, execute), with less at stake: nothing here gives an order to a broker.
"""
