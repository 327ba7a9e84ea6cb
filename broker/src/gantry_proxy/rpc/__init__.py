"""gRPC over `gantry_proxy.http2`: calls, their statuses and deadlines, the port, and the health protocol.

protocol   methods, statuses, and the bytes around messages
incoming   the messages of a client on a stream, and the windows that they leave
shares     what all clients of a port may take, and how they share it
call       one call: its messages, its reply, its end
server     the port: connections, limits over all of them, TLS, and the orderly end
health     `grpc.health.v1`
"""

from gantry_speedups.modules import add_compiled

add_compiled(__name__, __path__)
