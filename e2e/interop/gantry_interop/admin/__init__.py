"""RocketMQ's administration tool `mqadmin`: its commands run against Apache's servers and Gantry's."""
