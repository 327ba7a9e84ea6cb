"""Pipelines in Kubernetes: resources that read a group's topics with Spark, each with a loop of its own.

    naming              the names and labels of objects
    facts               the connection of a pipeline to its group, and the problems that keep it from running
    configuration       the configuration file of the program in the pods
    pods, rendering     all objects of a pipeline; pure
    observed, status    the reports of its pods, and the status, conditions and events that follow from them; pure
    pages               the client for the progress page of a running driver
    reconciler          one round of one pipeline; `resource_loop` runs it

The structure is that of groups (observe, decide, execute), but simpler: nothing here gives orders to brokers.
"""
