"""Migration check: compare two clusters, topic by topic: queues, counts, offsets, contents, and group offsets.

    facts of both clusters -> pairs of queues, and the ranges that both have -> fingerprints of both (Spark) -> findings

Contents are compared by sums of hashes, which do not depend on order: a queue is compared with a queue or, where queues
do not correspond, a topic with a topic. No message is copied from one cluster to the other.
"""
