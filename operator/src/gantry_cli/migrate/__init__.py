"""`gantry migrate`: taking over from a running broker of RocketMQ's."""
