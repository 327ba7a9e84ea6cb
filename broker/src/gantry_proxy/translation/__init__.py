"""Between protocol buffers and remoting: pure functions without a clock, a connection or a task."""
