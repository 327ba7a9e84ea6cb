"""`gantry ha`: shows and controls a replicated group of brokers over their control sockets."""
