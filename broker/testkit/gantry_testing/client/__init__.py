"""A cluster in memory for tests: real sockets and frames, no disk, and faults on request.

`FakeCluster` is a name server and some brokers inside the test's own event loop. It keeps messages in lists and
implements what producers, consumers and a part of the administration need. It has no transactions: requests that end
one, and others that it lacks, get code 3. It does not model a broker's durability. Tests of applications may use it:
`broker/testkit` is in the source tree, not in the wheel.
"""

from gantry_testing.client.broker import FakeBroker
from gantry_testing.client.cluster import FakeCluster
from gantry_testing.client.log import FakeLog, FakeQueue
from gantry_testing.client.threaded import ThreadedCluster
from gantry_testing.client.waiting import wait_until

__all__ = ["FakeBroker", "FakeCluster", "FakeLog", "FakeQueue", "ThreadedCluster", "wait_until"]
