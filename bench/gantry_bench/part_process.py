"""The process of one part of `make bench`: its output, its time limit, and its end.

A part ends its servers at an interrupt. If it does not end in time after one, it is killed with every process that it
has started, because servers that are left would use the processor during the other parts.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread, Timer
from typing import Final

from gantry_bench.processes import ROOT

STOP_SECONDS_MAX: Final = 90.0
"""The time that an interrupted part has to end its servers before it is killed."""
KILLED: Final = "; it did not end at an interrupt and was killed, so its files are left in bench/results/run-*"


def run_part(command: Sequence[str], log_path: Path, *, seconds_max: float, report: Callable[[str], None]) -> str:
    """Run a part until it ends; return why it has failed, or an empty text. Its output goes to a file.

    Lines that end with dots report progress, and are passed on. An interrupt of this program stops the part first.
    """
    last_line, is_late = "", False
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # Errors come after what was printed before them.
    with log_path.open("w") as log:
        # In a session of its own, so that Ctrl-C reaches it once, from here: a second one would stop its clean-up.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env=environment, start_new_session=True, preexec_fn=_accept_interrupts,
        )  # fmt: skip

        def stop_late() -> None:
            nonlocal is_late
            is_late = True
            _stop(process)

        assert process.stdout is not None
        timer = Timer(seconds_max, stop_late)
        timer.start()
        try:
            for line in process.stdout:
                log.write(line)
                log.flush()
                last_line = line.strip() or last_line
                if line.startswith("  ") and line.rstrip().endswith("..."):
                    report(line.rstrip())
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                _discard_output(process)
                _stop(process)
            process.stdout.close()
    was_killed = code == -signal.SIGKILL
    if is_late:
        return f"it was stopped after {seconds_max / 60:.0f} minutes{KILLED if was_killed else ''}"
    return "" if code == 0 else f"exit code {code}: {last_line.removeprefix('Error: ')[:300]}"


def _accept_interrupts() -> None:
    """Undo what a shell without job control sets for jobs in the background: children inherit an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _discard_output(process: subprocess.Popen[str]) -> None:
    """Read the rest of the output in another thread, or the part could wait for a full pipe forever."""
    assert process.stdout is not None
    Thread(target=process.stdout.read, daemon=True).start()


def _stop(process: subprocess.Popen[str]) -> None:
    """Interrupt a part, and kill it with all its processes if it has not ended after some time."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        kill_all(process.pid)
        process.wait()
    except BaseException:  # a second interrupt of this program
        kill_all(process.pid)
        raise
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what is left of its group could keep the pipe open


def kill_all(process_id: int) -> None:
    """Kill the group of a process, and its descendants in other groups: Apache's brokers have sessions of their own."""
    found = descendants(process_id)
    with suppress(ProcessLookupError):
        os.killpg(process_id, signal.SIGKILL)
    for one in found:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def descendants(process_id: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = path.read_text()
            parents[int(path.parent.name)] = int(text[text.rindex(")") + 1 :].split()[1])
    found = [process_id]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
