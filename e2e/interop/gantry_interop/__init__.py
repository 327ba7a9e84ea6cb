"""Real RocketMQ clients against a broker: the harness around the Java drivers.

The Java programs in `driver/` check what a client saw; this package builds them, starts the peer they talk to (our
processes, or Apache's as the proof that the scenarios themselves are right), keeps everything bounded in time and
collects the verdicts. It shares no code with the broker, so that a misunderstanding cannot hide on both sides.
"""
