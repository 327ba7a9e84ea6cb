"""Between protocol buffers and remoting: pure functions without a clock, a connection or a task."""

from gantry_speedups.modules import add_compiled

add_compiled(__name__, __path__)
