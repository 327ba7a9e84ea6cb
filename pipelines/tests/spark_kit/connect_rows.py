"""Print the rows of SQL queries over Spark Connect, each query as one JSON line: `python connect_rows.py SQL...`."""

import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()  # of the server in SPARK_REMOTE
for query in sys.argv[1:]:
    rows = [list(row) for row in spark.sql(query).collect()]
    sys.stdout.write(json.dumps(rows, default=str) + "\n")
