"""RocketMQ's administration tool, `mqadmin`, run with every one of its commands against Apache's servers and ours."""
