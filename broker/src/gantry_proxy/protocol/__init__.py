"""The protocol of RocketMQ 5: `rocketmq.proto`, and the module that `scripts/protos` makes of it."""

from gantry_proxy.protocol import rocketmq_pb2

__all__ = ["rocketmq_pb2"]
