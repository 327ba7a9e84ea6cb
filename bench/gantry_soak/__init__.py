"""`make soak`: a group under every kind of load and fault, whose memory, files, threads and latency must stay flat.

group, faults            the group of `gantry up`, and the seeded faults
ledger, load, features*  the clients: what was sent, acknowledged and received, and how long it took
sampling, records        what is measured, and the file of samples
trends, bounds           whether a measure grows; pure
report, plot             the table, the page and its pictures; pure
"""
