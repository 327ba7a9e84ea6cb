"""The five curves of `make bench-scale`: what grows, which figures are measured, and how each should grow. Pure."""

from __future__ import annotations

from typing import Final

from gantry_bench.curve_points import Curve, CurveName, Measure

CPU_PARTS: Final = (
    ("loop_us", "in the event loop"), ("threads_us", "in other threads"), ("kernel_us", "in the kernel, of both")
)  # fmt: skip
ANONYMOUS: Final = Measure(
    key="anonymous_mib", heading="anonymous memory, MiB", title="Memory of the broker itself", growth="linear",
    noise=1.0, each_factor=1024, each_unit="KiB",
)  # fmt: skip
MAPPED: Final = Measure(key="mapped_mib", heading="mapped store files, MiB", decimals=0)
REST: Final = Measure(
    key="rest_percent", heading="CPU at rest, % of a core", decimals=2, title="CPU at rest", growth="flat", noise=0.5
)
SEND: Final = Measure(
    key="cpu_us", heading="broker CPU, us/send", decimals=2, title="CPU for a send", growth="flat", noise=0.5,
    parts=CPU_PARTS,
)  # fmt: skip

TOPICS: Final = Curve(
    name="topics", noun="topic", axis="topics",
    measures=(
        ANONYMOUS, MAPPED, SEND,
        Measure(key="loop_us", heading="event loop, us/send", decimals=2),
        Measure(key="kernel_us", heading="kernel, us/send", decimals=2),
        Measure(key="faults", heading="page faults/send", decimals=3),
        Measure(key="files", heading="open files", decimals=0),
        Measure(key="rate", heading="sends/s", decimals=0),
        Measure(
            key="start_s", heading="start, s", decimals=2, title="Start after a clean stop", growth="linear",
            noise=0.1, each_factor=1000, each_unit="ms",
        ),
        Measure(
            key="kill_s", heading="start after a kill, s", decimals=2,
            title="Start after a kill, with a recovery point", growth="linear", noise=0.2, each_factor=1000,
            each_unit="ms",
        ),
        Measure(key="stop_s", heading="stop, s", decimals=2), REST,
        Measure(
            key="change_ms", heading="broker CPU, ms/change", decimals=2, title="CPU to create or change a topic",
            growth="flat", noise=2.0,
        ),
        Measure(key="change_wall_ms", heading="time to create or change a topic, ms"),
    ),
    notes=(
        "Each topic has one queue. One connection sends 1 KiB messages to all topics in turn, 64 in one write, 64 in "
        "flight. At rest no client is connected; the broker registers all topics every 30 s. A change of "
        "a topic is answered when the table of topics is on the disk and the name server has it. A start after a kill "
        "reads the unused rest of each queue's last file, up to 6 MB of zeros.",
    ),
)  # fmt: skip
CONNECTIONS: Final = Curve(
    name="connections", noun="connection", axis="connections",
    measures=(
        ANONYMOUS,
        Measure(key="each_kib", heading="KiB for an idle connection"),
        Measure(key="kept_kib", heading="KiB kept after it is closed"),
        Measure(key="leaked_kib", heading="more after the second time"),
        REST,
        Measure(
            key="cpu_us", heading="broker CPU, us/send", decimals=2, title="CPU for a send beside idle connections",
            growth="flat", noise=0.5, parts=CPU_PARTS,
        ),
        Measure(
            key="all_us", heading="broker CPU, us/send, all send", decimals=2, title="CPU for a send if all send",
            growth="flat", noise=1.0,
            parts=(
                ("all_loop_us", "in the event loop"), ("all_threads_us", "in other threads"),
                ("all_kernel_us", "in the kernel, of both"),
            ),
            references=(
                ("wide_us", "if a turn of the event loop may read 64 MiB instead of 1 MiB it is"),
                ("echo_us", "on an echo server it is"),
            ),
        ),
        Measure(key="wide_us", heading="with turns of 64 MiB", decimals=2),
        Measure(key="echo_us", heading="echo server, us/send", decimals=2),
        Measure(key="all_kernel_us", heading="kernel, us/send, all send", decimals=2),
        Measure(key="all_rate", heading="sends/s, all send", decimals=0),
        Measure(key="all_p99_ms", heading="p99, ms, all send"),
        Measure(key="all_each_kib", heading="KiB for a sending connection"),
    ),
    notes=(
        "Idle connections send a heartbeat every 30 s. Beside them, one more connection sends 64 messages of 1 KiB in "
        "one write. Then they are closed, and as many connections send, with one message in flight each. The broker "
        "serves 1 MiB of requests in a turn of its event loop (`maxReadBytesPerTurn`), so that small requests wait for "
        "no burst, and pauses the connections whose requests wait for a later turn; the same load also runs with "
        "turns of 64 MiB, and on an echo server. Memory of sockets in the kernel is not the broker's, and is not "
        "counted. The allocator keeps freed memory; more of it after the same connections a second time would be a "
        "leak.",
    ),
)  # fmt: skip
CONSUMERS: Final = Curve(
    name="consumers", noun="consumer", axis="consumers",
    measures=(
        ANONYMOUS,
        Measure(key="each_kib", heading="KiB for a consumer"),
        REST,
        Measure(
            key="own_us", heading="broker CPU, us/delivery, own queues", decimals=1,
            title="CPU for a delivery, a queue each", growth="flat", noise=5.0,
            parts=(
                ("own_loop_us", "in the event loop"), ("own_threads_us", "in other threads"),
                ("own_kernel_us", "in the kernel, of both"),
            ),
        ),
        Measure(
            key="shared_us", heading="broker CPU, us/delivery, one queue", decimals=1,
            title="CPU for a delivery, one queue for all", growth="flat", noise=5.0,
            parts=(
                ("shared_loop_us", "in the event loop"), ("shared_threads_us", "in other threads"),
                ("shared_kernel_us", "in the kernel, of both"),
            ),
        ),
    ),
    notes=(
        "Each consumer has a connection, a consumer group and a held pull. With a queue each, a message wakes one "
        "pull; on one queue it wakes all of them. One producer sends the next message when all have received the last "
        "one. The figures contain the CPU time of the sends: one for each delivery with own queues, one for all "
        "deliveries of a message on one queue. Memory and CPU at rest are those with a queue each.",
    ),
)  # fmt: skip
SHARDS: Final = Curve(
    name="shards", noun="shard", axis="shards on one machine",
    measures=(
        Measure(
            key="rate", heading="sends/s in sum", decimals=0, title="Sends per second in sum", growth="proportional"
        ),
        Measure(
            key="cpu_us", heading="broker CPU, us/send", decimals=2, title="CPU for a send", growth="flat", noise=0.5,
            parts=(("kernel_us", "in the kernel"),),
        ),
        Measure(key="kernel_us", heading="kernel, us/send", decimals=2),
        Measure(key="broker_cores", heading="cores, brokers", decimals=2),
        Measure(key="load_cores", heading="cores, load generators", decimals=2),
        Measure(
            key="anonymous_mib", heading="anonymous memory in sum, MiB", title="Memory of all brokers themselves",
        ),
        Measure(
            key="each_mib", heading="anonymous memory of one, MiB", title="Memory of one broker", growth="flat",
            noise=5.0,
        ),
        MAPPED,
    ),
    notes=(
        "Each shard is a broker process of its own. A load generator for each sends 1 KiB messages over one "
        "connection, 64 in one write. No process is tied to a core.",
    ),
)  # fmt: skip
RESTART: Final = Curve(
    name="restart", noun="GB", axis="log, GB",
    measures=(
        Measure(
            key="clean_s", heading="start after a clean stop, s", decimals=2, title="Start after a clean stop",
            growth="flat", noise=0.2,
        ),
        Measure(
            key="point_s", heading="after a kill, s", decimals=2, title="Start after a kill, with a recovery point",
            growth="flat", noise=0.5,
        ),
        Measure(key="point_gb", heading="GB read after a kill", decimals=2),
        Measure(
            key="cached_s", heading="no recovery point, cached, s", decimals=2,
            title="Start without a recovery point, log in the page cache", growth="linear", noise=0.2, each_unit="s",
        ),
        Measure(key="cached_gbs", heading="GB/s, cached", decimals=2),
        Measure(
            key="disk_s", heading="no recovery point, from the disk, s", decimals=2,
            title="Start without a recovery point, log on the disk", growth="linear", noise=0.2, each_unit="s",
        ),
        Measure(key="disk_gbs", heading="GB/s, from the disk", decimals=2),
    ),
    notes=(
        "Messages of 1 KiB in four queues of one topic. The seconds are from the start of the broker's process to its "
        "first answer about a queue. Before the kill, the broker has stored messages for half a second since its "
        "recovery point; in operation one is written every 10 s. That start also syncs what only the page cache had, "
        "and reads the unused rest of the index file, up to 420 MB of zeros. Without a recovery point the whole log is "
        "read, and queues and index are written again. A log that is larger than the memory comes from the disk in "
        "either case.",
    ),
)  # fmt: skip
CURVES: Final[dict[CurveName, Curve]] = {
    curve.name: curve for curve in (TOPICS, CONNECTIONS, CONSUMERS, SHARDS, RESTART)
}
