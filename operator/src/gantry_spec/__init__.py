"""What a group of brokers should be, and what follows from how it is: values and decisions, nothing that acts.

The operator, the local supervisor and the command line decide by the same functions. Nothing here reads a clock, a
disk or a network, and nothing of ours is imported: whoever observes hands in what was seen.
"""
