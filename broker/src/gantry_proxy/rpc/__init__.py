"""gRPC over `gantry_proxy.http2`: calls, their statuses and deadlines, the port, and the health protocol.

protocol   methods, statuses, and the bytes around messages
call       one call: its messages, its reply, its end
server     the port: connections, limits over all of them, TLS, and the orderly end
health     `grpc.health.v1`
"""
