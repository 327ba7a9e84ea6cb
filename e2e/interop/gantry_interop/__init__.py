"""Real RocketMQ clients against a broker: the harness around the Java drivers.

The Java programs in `driver/` check what a client saw; this package builds them, starts the peer to which they connect
(Gantry's servers, or Apache's, which prove that the scenarios themselves are right), bounds everything in time and
collects the verdicts. The Java programs share no code with Gantry, so that a misunderstanding cannot hide on both
sides.
"""
