"""RocketMQ topics as a Spark data source: `spark.read.format("rocketmq")`."""
