"""The rows of the fault catalogue, and the tests that belong to each row.

A test belongs to a row when its docstring begins with the row's name: "D4: ...", "D4, in memory: ...",
"D10 and D11: ...", and "D4's twin: ..." for its twin: the same test with a guard disabled, which must then find the
damage. K are faults of processes, D of disks, R of replication, and S attacks (docs/security.md). The source is read
and not imported, so that tests that are skipped on this machine are in the table, too.

    python broker/tests/faults/rows.py        the table
    pytest broker/tests/faults broker/tests/replication --rows       the table with how the tests of this run ended
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROWS: Final = {
    "K1": "SIGKILL at any moment under load, in every mode",
    "K2": "SIGKILL at each crash point under load",
    "K3": "SIGTERM under load, more signals, SIGKILL while stopping",
    "K4": "SIGSTOP of a master, then SIGCONT",
    "K5": "a kill during recovery, again and again",
    "K6": "no descriptors, no address space, no memory",
    "K7": "the clock jumps: test_server_retention.py",
    "D1": "power loss under load, in every mode",
    "D2": "torn writes: any subset of the dirty pages",
    "D3": "power loss right after a roll",
    "D4": "the n-th sync or write fails with EIO",
    "D5": "a write that is short, and one that is lost",
    "D6": "the disk fills up, then has space again",
    "D7": "a file that gets no blocks",
    "D8": "the file system turns read-only",
    "D9": "a bit changes in any field of a record",
    "D10": "wrong lengths, blank records where none belong",
    "D11": "old content: stale segments, foreign and outdated buffers",
    "D12": "queues, index, checkpoint, abort marker deleted or damaged",
    "D13": "JSON files damaged, or half saved",
    "D14": "two processes on one directory",
    "D15": "a sync that takes seconds",
    "R1": "a slave is killed and comes back",
    "R2": "master and slaves cut apart, in one direction or both",
    "R3": "a promotion, and the old master returns with a tail",
    "R4": "a master comes back with less than its slave",
    "R5": "rogues on the replication port",
    "R6": "a slave with nothing, or one whose next bytes have expired",
    "R7": "the replication stream is manipulated",
    "R8": "the disk of a slave fails",
    "R9": "consumers while the end of the log may still be lost, then a crash",
    "R10": "R9 with a write buffer",
    "R11": "one of two slaves lags",
    "R12": "other settings and roles after a restart",
    "S1": "malformed frames",
    "S2": "lengths beyond every limit",
    "S3": "slow, silent and too many peers",
    "S4": "names that would be paths",
    "S5": "decompression bombs, batches with wrong lengths",
    "S6": "access control: anonymous clients, and clients without the permission",
    "S7": "configuration, with and without the permission",
    "S8": "the sidecar: callers without credentials, malicious names and bodies",
    "S9": "secrets: not in logs, metrics, settings, status, bundles",
}
ROOT_NEEDS: Final = frozenset({"root", "loop", "memory_group"})
"""Requirements that a machine meets only for root."""
TESTS: Final = Path(__file__).resolve().parents[1]
_NAMES: Final = re.compile(r"((?:[KDRS]\d+)(?:(?:, | and )[KDRS]\d+)*)('s twin)?\b")


class RowTest(NamedTuple):
    """One test function with the facts that its source declares."""

    name: str
    rows: tuple[str, ...]
    is_twin: bool
    """Whether it runs without a guard, and must find the damage."""

    is_slow: bool
    """Whether the whole function is slow. A function with only some slow parameters runs by default."""

    needs: tuple[str, ...]
    """Requirements of the test on the machine."""

    @property
    def runs_everywhere(self) -> bool:
        """Whether `make test` or `make verify` runs the test on a machine without root, with the guard enabled."""
        return not self.is_twin and not self.is_slow and not set(self.needs) & ROOT_NEEDS


def rows_of(docstring: str | None) -> tuple[tuple[str, ...], bool]:
    """Return the rows that a docstring begins with, and whether it is about a disabled guard."""
    found = _NAMES.match(docstring or "")
    if found is None:
        return (), False
    return tuple(re.split(r", | and ", found[1])), found[2] is not None


def _marks(nodes: list[ast.expr]) -> list[str]:
    """Return the markers among decorators or in a `pytestmark`, without those of single parameters."""
    texts = [
        ast.unparse(element) for node in nodes for element in (node.elts if isinstance(node, ast.List) else [node])
    ]
    return [text.removeprefix("pytest.mark.") for text in texts]


def row_tests_in(path: Path) -> Iterator[RowTest]:
    """Return the tests of one file that belong to a row."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    common = [
        node.value for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]  # fmt: skip
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        rows, is_twin = rows_of(ast.get_docstring(node))
        if rows:
            marks = _marks([*common, *node.decorator_list])
            needs = tuple(mark.removeprefix("needs_") for mark in marks if mark.startswith("needs_"))
            yield RowTest(f"{path.stem}.{node.name}", rows, is_twin, "slow" in marks, needs)


def catalogue(root: Path = TESTS) -> dict[str, list[RowTest]]:
    """Return row -> its tests, for every row of the catalogue and every other row that a test names."""
    found: dict[str, list[RowTest]] = {row: [] for row in ROWS}
    for path in sorted(root.rglob("test_*.py")):
        for test in row_tests_in(path):
            for row in test.rows:
                found.setdefault(row, []).append(test)
    return found


def main() -> None:
    for row, tests in catalogue().items():
        sys.stdout.write(f"{row:<4} {ROWS.get(row, 'in no list')}\n")
        for test in tests:
            facts = [*(["twin"] if test.is_twin else []), *(["slow"] if test.is_slow else []), *test.needs]
            sys.stdout.write(f"       {test.name} {', '.join(facts)}".rstrip() + "\n")


if __name__ == "__main__":
    main()
