"""The gRPC proxy: the service of RocketMQ 5 for its SDKs, in front of any group of brokers.

It keeps no state that another replica would need: a receipt and a transaction id contain all that a call needs to know.
It talks to brokers and name servers by remoting, so the brokers may be Gantry's or Apache RocketMQ's.

    main -> proxy -> service -> handlers -> clients, renewal, topics -> brokers
                                         `- translation: protocol buffers <-> remoting, pure functions
"""

from gantry_speedups.modules import add_compiled

add_compiled(__name__, __path__)
