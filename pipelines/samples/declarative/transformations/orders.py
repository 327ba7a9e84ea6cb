"""Orders as they arrive, and their count and sum per minute and customer."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, from_json, sum, window

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Return the orders that arrived since the last run; the table has each of them once."""
    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServers", spark.conf.get("orders.nameServers") or "")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxRowsPerTrigger", spark.conf.get("orders.rowsPerBatch") or "")
        .option("columns", "queue,offset,body")
        .load()
    )
    order = from_json(col("body").cast("string"), "customer string, amount bigint, placed timestamp")
    return messages.select("queue", "offset", order.alias("order")).select("queue", "offset", "order.*")


@dp.materialized_view
def orders_per_minute() -> DataFrame:
    """Return the count and the sum of the orders of each customer in each minute."""
    minute = window("placed", "1 minute")
    totals = spark.read.table("orders").groupBy(minute.alias("minute"), "customer")
    return totals.agg(count("*").alias("orders"), sum("amount").alias("amount"))
