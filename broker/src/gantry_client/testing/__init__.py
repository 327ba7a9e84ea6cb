"""A cluster in memory for tests: real sockets and frames, no disk, and faults on request.

`FakeCluster` is a name server and some brokers inside the test's own event loop. It keeps messages in lists and speaks
enough of the protocol for every client of this package. What it is not: a model of a broker's durability. Tests of
applications may use it, too.
"""

from gantry_client.testing.broker import FakeBroker
from gantry_client.testing.cluster import FakeCluster
from gantry_client.testing.log import FakeLog, FakeQueue
from gantry_client.testing.threaded import ThreadedCluster
from gantry_client.testing.waiting import wait_until

__all__ = ["FakeBroker", "FakeCluster", "FakeLog", "FakeQueue", "ThreadedCluster", "wait_until"]
