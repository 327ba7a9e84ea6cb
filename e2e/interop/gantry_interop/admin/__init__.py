"""RocketMQ's administration tool `mqadmin`: all of its commands run against Apache's servers and ours."""
