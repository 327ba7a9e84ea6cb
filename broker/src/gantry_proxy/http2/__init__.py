"""HTTP/2 for the server side of gRPC, without a socket: bytes in, requests and bytes out.

    huffman     the code of header texts
    hpack       header blocks: decoded with their table, encoded without one
    frames      the layout of frames, their kinds, and the codes of errors
    streams     one request with its reply: windows, and data that waits for them
    connection  all streams of one client: settings, flow control, limits, and the orderly end

It has what gRPC needs of RFC 9113 and RFC 7541: no push, no priorities, no upgrade from HTTP/1. Every frame of a client
costs bounded memory, and work in proportion to its bytes.
"""

from gantry_speedups.modules import add_compiled

add_compiled(__name__, __path__)
