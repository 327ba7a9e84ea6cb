"""Pipelines in Kubernetes: resources that read a group's topics with Spark, each with a task of its own.

    naming, sources     what things are called, and what a group offers to whoever reads it
    configuration       what the pods' program is told
    pods, rendering     every object of a pipeline, purely
    seen, deciding      what its pods have said, and what that comes to: status, conditions, events; pure
    claims              who of several has one destination
    pages               how far a run is, asked now
    reconciler          one round of one pipeline; `resource_loop` runs it

It is the style of groups (observe -> decide -> act), with less at stake: nothing here gives an order to a broker.
"""
