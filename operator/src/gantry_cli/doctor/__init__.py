"""`gantry doctor`: finds common set-up faults of a cluster, and names the remedy of each.

    results                what a check found: ok, fault, warning, or skipped with the reason
    facts                  what was observed of servers, consumer groups and this machine, as plain values
    connection_checks      decisions about name servers, addresses, TLS and accounts, from facts only
    server_checks          decisions about clocks, disks, memory, versions, slaves and consumer groups, from facts only
    checks                 the list of all checks
    dialogue               one connection to a server, and the cause if it fails
    gathering              observes a cluster through its name servers
    local_facts            observes a group of `gantry up` by its files and sidecars
    kube_checks            decisions about a group in a Kubernetes cluster
    commands               the command, its output and exit code

The checks have no input or output, so each is tested with facts of its own. Nothing that is observed is changed.
"""
