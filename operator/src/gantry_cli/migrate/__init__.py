"""The command `gantry migrate`: migration from a running RocketMQ broker."""
