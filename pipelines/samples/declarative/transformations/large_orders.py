"""Large orders as messages of another topic, exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

dp.create_sink(
    "large_orders",
    format="rocketmq",
    options={
        "nameServers": spark.conf.get("orders.nameServers") or "",
        "topic": "large-orders",
        "transactional": "true",
    },
)


@dp.append_flow(target="large_orders")
def large_orders_flow() -> DataFrame:
    """Return a message for each order of 100 or more."""
    large = spark.readStream.table("orders").where("amount >= 100")
    return large.selectExpr("to_json(struct(customer, amount, placed)) as body", "customer as keys")
