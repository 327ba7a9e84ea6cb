"""Has everything come along? Two clusters, topic by topic: queues, counts, offsets, content, and groups' offsets.

    facts of both (asked) -> pairs of queues, and the ranges that both have -> fingerprints of both (Spark) -> findings

Contents are compared by sums of hashes, which do not depend on order: so a queue can be held against a queue, and where
queues do not correspond, a topic against a topic. No message goes from one cluster to the other.
"""
