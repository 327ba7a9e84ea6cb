"""A pytest plugin: what a test needs of the machine, and a loud account of what could not run.

A test says what it needs with a marker (`needs_root`, `needs_java`, ...). Each need has a probe that looks at
the machine once per session. When something is missing the test is skipped with the remedy in the reason, and
the summary ends with a "not run here" table that counts such tests, so that a green run on a bare laptop is
never mistaken for a full one.

The rule it guards: where a need was promised, a skip is a failure. `GANTRY_REQUIRE=root,java` promises root and
Java; a test that wants one of them and does not find it then fails instead of disappearing. A name that is
no need at all stops the run at once, because a typing error there would silently promise nothing.

It refuses to know what the tests do, and it never installs anything. Tests that a run does not select (`parts_plugin`)
are no skips: a skip means that this machine cannot. They are counted in the same table.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from xdist.workermanage import WorkerController

from gantry_testing.programs import helm_program, kubernetes_program, object_store_program

REQUIRE_VARIABLE = "GANTRY_REQUIRE"
PROBE_TIMEOUT_S = 10
GO_VERSION_MIN = (1, 22)

Probe = Callable[[], str | None]
"""Looks at the machine: None when the need is met, else a few words on what is missing."""


@dataclass(frozen=True)
class Need:
    """One thing that a test may need of the machine, how to look for it, and how to get it."""

    name: str
    probe: Probe
    remedy: str
    promise: str = ""
    """The need whose promise covers this one too; empty for its own only."""

    @property
    def marker(self) -> str:
        """The marker that tests carry."""
        return f"needs_{self.name}"


@dataclass(eq=False)
class Account:
    """What was not run: per need, the reason and how many tests.

    Where several processes run the tests, each of them asks its own probes, and the one that has their reports counts.
    """

    promised: frozenset[str]
    answers: dict[str, str | None] = field(default_factory=dict)
    not_run: dict[tuple[str, str, str], int] = field(default_factory=dict)
    left_out: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """What the run did not select: how many tests, why, and how to run them."""

    selected: int = 0
    finished: int = 0

    def missing(self, need: Need) -> str | None:
        """The probe's answer, asked once."""
        if need.name not in self.answers:
            self.answers[need.name] = need.probe()
        return self.answers[need.name]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One test more has ended, or did not run."""
        if report.when == "teardown":
            self.finished += 1
        if report.when != "setup" or not report.skipped:
            return
        for name, row in report.user_properties:
            if name == NOT_RUN:
                key: tuple[str, str, str] = tuple(row)  # type: ignore[assignment,arg-type]
                self.not_run[key] = self.not_run.get(key, 0) + 1


def missing_commands(*names: str) -> str | None:
    """The first command that is not on PATH."""
    for name in names:
        if shutil.which(name) is None:
            return f"no {name} on PATH"
    return None


def command_fails(*words: str) -> str | None:
    """What is wrong with a command that should succeed quickly; a hanging one counts as failing."""
    try:
        result = subprocess.run(words, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{' '.join(words)}`: {type(error).__name__}"
    return None if result.returncode == 0 else f"`{' '.join(words)}` exits {result.returncode}"


def probe_root() -> str | None:
    """Root is a property of the process."""
    return None if os.geteuid() == 0 else f"running as user {os.geteuid()}"


def probe_loop() -> str | None:
    """A file system in a file, really made and mounted: containers often have the commands and not the right."""
    missing = probe_root() or missing_commands("mkfs.ext4", "mount", "umount")
    if missing:
        return missing
    with tempfile.TemporaryDirectory() as directory:
        image, target = Path(directory, "image"), Path(directory, "target")
        target.mkdir()
        with image.open("wb") as file:
            file.truncate(4 << 20)
        made = command_fails("mkfs.ext4", "-q", "-F", str(image)) or command_fails(
            "mount", "-o", "loop", str(image), str(target)
        )
        return made or command_fails("umount", str(target))


def probe_strace() -> str | None:
    """strace, and a system that lets it attach to a process that it did not start."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.is_file() and scope.read_text().strip() != "0" and os.geteuid() != 0:
        return "kernel.yama.ptrace_scope lets only root attach"
    return missing_commands("strace") or command_fails("strace", "-qq", "-o", "/dev/null", "true")


def probe_memory_group() -> str | None:
    """A memory control group that we may make, of either version."""
    missing = probe_root()
    if missing:
        return missing
    root = Path("/sys/fs/cgroup")
    if (root / "memory" / "memory.limit_in_bytes").is_file():
        return None
    control = root / "cgroup.subtree_control"
    if control.is_file() and "memory" in control.read_text().split() and os.access(control, os.W_OK):
        return None
    return "no memory controller in /sys/fs/cgroup that may be used"


def probe_java() -> str | None:
    """A compiler, a runtime that starts, and Maven."""
    return missing_commands("java", "javac", "mvn") or command_fails("java", "-version")


def probe_go() -> str | None:
    """A Go toolchain that starts and is new enough for our modules."""
    missing = missing_commands("go")
    if missing:
        return missing
    words = subprocess.run(
        ["go", "env", "GOVERSION"],
        capture_output=True,
        text=True,
        timeout=PROBE_TIMEOUT_S,
        check=False,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    ).stdout.strip()
    version = re.fullmatch(r"go(\d+)\.(\d+).*", words)
    if version is None or (int(version[1]), int(version[2])) < GO_VERSION_MIN:
        return f"Go 1.22 or newer is needed, found {words or 'nothing'}"
    return None


def probe_spark() -> str | None:
    """PySpark in this environment and a Java runtime for it."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    return missing_commands("java")


def probe_cluster() -> str | None:
    """Everything that e2e/cluster needs to make Kubernetes nodes here; it builds the rest itself."""
    missing = probe_root() or probe_go() or missing_commands("containerd", "runc", "iptables", "conntrack", "nsenter")
    if missing:
        return missing
    if not Path("/usr/lib/cni/bridge").exists():
        return "no network plugins in /usr/lib/cni"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "control groups are not of version 1"
    return command_fails("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true")


def probe_browser() -> str | None:
    """A headless browser."""
    names = ("chromium", "chromium-browser", "google-chrome", "firefox")
    return None if any(shutil.which(name) for name in names) else "no chromium, google-chrome or firefox on PATH"


def probe_openssl() -> str | None:
    """The command, which can do what a well-behaved client never does."""
    return missing_commands("openssl")


def probe_curl() -> str | None:
    """The command, with which the pages in docs/ ask the sidecar."""
    return missing_commands("curl")


def probe_buildah() -> str | None:
    """buildah, to build images without a daemon."""
    return missing_commands("buildah")


def probe_prometheus() -> str | None:
    """Prometheus and its tool, to be scraped by."""
    return missing_commands("prometheus", "promtool")


def probe_helm() -> str | None:
    """Helm 3, wherever `scripts/helm` finds it."""
    return None if helm_program() is not None else "scripts/helm finds none"


def probe_api_server() -> str | None:
    """An API server of Kubernetes with its store, as programs to be run alone."""
    missing = [name for name in ("etcd", "kube-apiserver") if kubernetes_program(name) is None]
    return f"no {missing[0]} was built" if missing else None


def probe_object_store() -> str | None:
    """A server that speaks S3."""
    return None if object_store_program() is not None else "none was built"


NEEDS: dict[str, Need] = {
    need.name: need
    for need in (
        Need("root", probe_root, "run again with sudo"),
        Need("loop", probe_loop, "run as root on a machine, not in a container; apt-get install e2fsprogs mount"),
        Need("strace", probe_strace, "apt-get install strace"),
        Need("memory_group", probe_memory_group, "run as root where cgroups are writable"),
        Need("java", probe_java, "apt-get install openjdk-17-jdk-headless maven"),
        Need("go", probe_go, "on Debian 12: apt-get install -t bookworm-backports golang-go"),
        Need("spark", probe_spark, "scripts/setup spark, and apt-get install openjdk-17-jre-headless"),
        Need(
            "cluster",
            probe_cluster,
            "run as root on a machine; apt-get install containerd runc containernetworking-plugins iptables conntrack",
        ),
        Need("browser", probe_browser, "apt-get install chromium"),
        Need("curl", probe_curl, "apt-get install curl"),
        Need("openssl", probe_openssl, "apt-get install openssl"),
        Need("buildah", probe_buildah, "apt-get install buildah"),
        Need("helm", probe_helm, "scripts/kubernetes helm, which needs Go"),
        Need("api_server", probe_api_server, "scripts/kubernetes, which needs Go"),
        Need("object_store", probe_object_store, "scripts/object-store, which needs Go"),
        Need("prometheus", probe_prometheus, "apt-get install prometheus; it also starts a service, see .ci/run"),
    )
}

ACCOUNT = pytest.StashKey[Account]()
SKIP_PREFIX = "not run here: "
NOT_RUN = "not run here"
"""The property of a report that says what was missing."""


def parse_promises(text: str) -> frozenset[str]:
    """The needs named in a comma list; a name that is no need is refused."""
    names = frozenset(word for word in (part.strip() for part in text.split(",")) if word)
    unknown = names - NEEDS.keys()
    if unknown:
        raise pytest.UsageError(
            f"{REQUIRE_VARIABLE} names {', '.join(sorted(unknown))}; known: {', '.join(sorted(NEEDS))}"
        )
    return names


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and read what was promised."""
    for need in NEEDS.values():
        config.addinivalue_line("markers", f"{need.marker}: skipped, and counted, without it ({need.remedy})")
    promised = parse_promises(os.environ.get(REQUIRE_VARIABLE, ""))
    account = config.stash[ACCOUNT] = Account(promised)
    config.pluginmanager.register(account, "gantry-account")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: skip, or fail where the need was promised."""
    demand(item, [need for need in NEEDS.values() if item.get_closest_marker(need.marker) is not None])


def demand(item: pytest.Item, needs: Sequence[Need]) -> None:
    """Skip a test that needs what is not there, counted; or fail it, where that was promised.

    For plugins with needs of their own, which no marker of this one names.
    """
    account = item.config.stash[ACCOUNT]
    missing = [(need, reason) for need in needs if (reason := account.missing(need)) is not None]
    for need, reason in missing:
        promise = next((name for name in (need.name, need.promise) if name in account.promised), None)
        if promise is not None:
            pytest.fail(f"{REQUIRE_VARIABLE} promises {promise}, but {reason} (remedy: {need.remedy})", pytrace=False)
    if missing:
        need, reason = missing[0]
        item.user_properties.append((NOT_RUN, [need.name, reason, need.remedy]))
        pytest.skip(f"{SKIP_PREFIX}needs {need.name}, {reason} (remedy: {need.remedy})")


def other_skips(reporter: pytest.TerminalReporter) -> dict[str, int]:
    """Reasons of the skips that this plugin did not cause; they did not run here either."""
    counts: dict[str, int] = {}
    for report in reporter.stats.get("skipped", ()):
        details = report.longrepr
        reason = str(details[2] if isinstance(details, tuple) else details).removeprefix("Skipped: ")
        if not reason.startswith(SKIP_PREFIX) and not hasattr(report, "wasxfail"):
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def pytest_collection_finish(session: pytest.Session) -> None:
    """How many tests this run means to run."""
    session.config.stash[ACCOUNT].selected = len(session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: Sequence[str]) -> None:
    """The same where others run them: each finds all."""
    node.config.stash[ACCOUNT].selected = len(ids)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """The table; printed even when it is empty, so that its absence never has to be interpreted."""
    account = config.stash[ACCOUNT]
    rows = [(name, count, reason, remedy) for (name, reason, remedy), count in account.not_run.items()]
    rows += [("(skip)", count, reason, "") for reason, count in other_skips(terminalreporter).items()]
    rows += [(name, *row) for name, row in account.left_out.items()]
    unreached = 0 if config.option.collectonly else account.selected - account.finished
    if unreached:
        rows.append(("(stop)", unreached, "the run ended before them", ""))
    terminalreporter.section("not run here")
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        terminalreporter.line("the run did not come to its end: nothing can be said of the tests it did not reach")
    elif not rows and not config.option.collectonly:
        terminalreporter.line("nothing: every selected test ran on this machine")
    if rows:
        terminalreporter.line(f"{'needs':<16} {'tests':>5}  why, and the remedy")
    for name, count, reason, remedy in sorted(rows):
        terminalreporter.line(f"{name:<16} {count:>5}  {reason}{f' -- {remedy}' if remedy else ''}")
