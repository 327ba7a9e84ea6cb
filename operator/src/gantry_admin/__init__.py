"""The admin sidecar: one beside every broker, which tells the truth about it, also while the broker cannot.

    status page (a file)  ----read--->  watch  --->  probes, status, durability, events, metrics   (HTTP)
    control socket (Unix) <---orders--  link   <---  role
    log and queue files   ----read--->  files  --->  log ranges                                   (HTTP, sendfile)

The rule it keeps: **nothing that it answers waits for the broker.** What the broker has to be asked for is asked in the
background and answered from memory, with its age. It knows the broker by its page, its control socket, its port and its
files, and nothing of the broker's own code. Users' side of it is in ``docs/sidecar.md``.
"""
