"""Where everything in this process is: the stacks of its threads, and of the tasks of the running event loop.

What a Java client answers with a dump of its threads; here most of what waits is a task and no thread.
"""

import asyncio
import io
import sys
import threading
import traceback
from typing import Final

TASKS_MAX: Final = 500
"""Tasks in one dump."""

FRAMES_MAX: Final = 50
"""Frames of one stack, the innermost ones."""


def all_stacks() -> str:
    """One paragraph for each thread and each task."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, '?')} {ident}\n{''.join(traceback.format_stack(frame)[-FRAMES_MAX:])}"
        for ident, frame in sys._current_frames().items()
    ]
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    parts += [_task_text(task) for task in tasks[:TASKS_MAX]]
    if len(tasks) > TASKS_MAX:
        parts.append(f"and {len(tasks) - TASKS_MAX} tasks more\n")
    return "\n".join(parts)


def _task_text(task: asyncio.Task[object]) -> str:
    out = io.StringIO()
    task.print_stack(limit=FRAMES_MAX, file=out)
    return f"task {task.get_name()}\n{out.getvalue()}"
