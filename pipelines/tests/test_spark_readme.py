"""The three lines of the README, exactly as printed, in a network without any other machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
WITHOUT_NETWORK = """
set -eu
ip link set lo up
gantry up --single --detach
trap 'gantry down' EXIT
gantry produce hello "first message"
python three_lines.py
"""


DISCONNECTED_WORKER = re.compile(
    r"Traceback \(most recent call last\):\n"
    r"(?:  File \"[^\"\n]*pyspark/daemon\.py\"[^\n]*\n(?:    [^\n]*\n)*)*"
    r"(?:BrokenPipeError: [^\n]*\n|\Z)"
)
"""The traceback of a PySpark worker, whole or truncated, after `show()` has disconnected: see docs/spark.md."""


def three_lines(readme: str) -> str:
    """Return the README's only Spark program."""
    [program] = [text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "spark" in text]
    return str(program)


@pytest.mark.verify
@pytest.mark.needs_spark
@pytest.mark.needs_root
def test_readme_example_prints_a_table_without_network(tmp_path: Path) -> None:
    """The lines run as shown, on the usual ports, where no address beyond the machine can be reached."""
    (tmp_path / "three_lines.py").write_text(three_lines(README.read_text()))
    bin_folder = Path(sys.executable).parent

    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", WITHOUT_NETWORK],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    columns = next(line for line in done.stdout.splitlines() if "|topic|" in line.replace(" ", ""))
    [row] = [line for line in done.stdout.splitlines() if line.startswith("|") and "hello" in line]
    assert len(row.split("|")) == len(columns.split("|"))
    assert "Traceback" not in DISCONNECTED_WORKER.sub("", done.stderr)


def test_only_tracebacks_of_disconnected_workers_are_ignored() -> None:
    """Whole or truncated ones are ignored; any other traceback is an error."""
    head = "Traceback (most recent call last):\n"
    worker = '  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n    code = worker(sock)\n'
    hung_up = f"{head}{worker}{worker}BrokenPipeError: [Errno 32] Broken pipe\n"
    ours = f'{head}  File "/x/pyspark_rocketmq/reading.py", line 1, in read\nBrokenPipeError: no\n'

    assert DISCONNECTED_WORKER.sub("", f"a\n{hung_up}b\n{hung_up}{head}") == "a\nb\n"
    assert DISCONNECTED_WORKER.sub("", f"{ours}b\n") == f"{ours}b\n"
    assert DISCONNECTED_WORKER.sub("", f"{head}{worker}ValueError: no\n") == f"{head}{worker}ValueError: no\n"
