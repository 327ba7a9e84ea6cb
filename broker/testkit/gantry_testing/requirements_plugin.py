"""A pytest plugin that checks what tests need of the machine, and prints a table of the tests that could not run.

A test declares its needs with markers (`needs_root`, `needs_java`, ...). Each need has a probe that checks
the machine once per session. If a need is not met, the test is skipped with the remedy in the reason, and
the summary ends with a "not run here" table that counts such tests, so that a green run on a bare laptop is
never mistaken for a full one.

Invariant: where a need was promised, a skip is a failure. `GANTRY_REQUIRE=root,java` promises root and Java; a test
that lacks one of them then fails instead of being skipped. A name that is not a need stops the run at once, because a
typing error would otherwise promise nothing.

It does not depend on the tests, and it never installs anything. Tests that a run does not select (`parts_plugin`)
are not skips: a skip means that this machine lacks something. They are counted in the same table.
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

from gantry_speedups import load_native
from gantry_testing.programs import (
    bundle_validator_program,
    chart_registry_program,
    gitops_judge_program,
    helm_program,
    kubernetes_program,
    object_store_program,
    porcupine_program,
)

REQUIRE_VARIABLE = "GANTRY_REQUIRE"
PROBE_TIMEOUT_S = 10
GO_VERSION_MIN = (1, 22)

Probe = Callable[[], str | None]
"""Checks the machine: returns None if the need is met, else what is missing."""


@dataclass(frozen=True)
class Need:
    """One requirement of tests on the machine, with its probe and its remedy."""

    name: str
    probe: Probe
    remedy: str
    promise: str = ""
    """Another need whose promise also covers this one; empty if there is none."""

    @property
    def marker(self) -> str:
        """The name of the marker of the need."""
        return f"needs_{self.name}"


@dataclass(eq=False)
class NotRunTally:
    """The tests that did not run: for each need, the reason and the number of tests.

    If several processes run the tests, each runs its own probes, and the main process counts their reports.
    """

    promised: frozenset[str]
    answers: dict[str, str | None] = field(default_factory=dict)
    not_run: dict[tuple[str, str, str], int] = field(default_factory=dict)
    left_out: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """The tests that the run did not select: their number, the reason, and how to run them."""

    selected: int = 0
    finished: int = 0

    def missing(self, need: Need) -> str | None:
        """Return the probe's answer, which is cached."""
        if need.name not in self.answers:
            self.answers[need.name] = need.probe()
        return self.answers[need.name]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that has ended or was skipped."""
        if report.when == "teardown":
            self.finished += 1
        if report.when != "setup" or not report.skipped:
            return
        for name, row in report.user_properties:
            if name == NOT_RUN:
                key: tuple[str, str, str] = tuple(row)  # type: ignore[assignment,arg-type]
                self.not_run[key] = self.not_run.get(key, 0) + 1


def missing_commands(*names: str) -> str | None:
    """Return a text that names the first of the commands that is not on PATH; None if all are."""
    for name in names:
        if shutil.which(name) is None:
            return f"no {name} on PATH"
    return None


def command_fails(*words: str) -> str | None:
    """Return the failure of a command that should succeed quickly; a hanging one counts as failed."""
    try:
        result = subprocess.run(words, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"`{' '.join(words)}`: {type(error).__name__}"
    return None if result.returncode == 0 else f"`{' '.join(words)}` exits {result.returncode}"


def probe_root() -> str | None:
    """Check that the process runs as root."""
    return None if os.geteuid() == 0 else f"running as user {os.geteuid()}"


def probe_loop() -> str | None:
    """Make and mount a file system in a file, because containers often have the commands but not the permission."""
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
    """Check for strace, and for permission to attach to a process that it did not start."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.is_file() and scope.read_text().strip() != "0" and os.geteuid() != 0:
        return "kernel.yama.ptrace_scope lets only root attach"
    return missing_commands("strace") or command_fails("strace", "-qq", "-o", "/dev/null", "true")


def probe_memory_group() -> str | None:
    """Check that we may make a memory control group, of either version."""
    missing = probe_root()
    if missing:
        return missing
    root = Path("/sys/fs/cgroup")
    if (root / "memory" / "memory.limit_in_bytes").is_file():
        return None
    control = root / "cgroup.subtree_control"
    if control.is_file() and "memory" in control.read_text().split() and os.access(control, os.W_OK):
        return None
    return "no usable memory controller in /sys/fs/cgroup"


def probe_java() -> str | None:
    """Check for a Java compiler, a runtime that starts, and Maven."""
    return missing_commands("java", "javac", "mvn") or command_fails("java", "-version")


def probe_go() -> str | None:
    """Check for a Go toolchain that starts and is new enough for our modules."""
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


def probe_node() -> str | None:
    """Check for Node.js and its package manager."""
    return missing_commands("node", "npm") or command_fails("node", "--version")


def probe_cc() -> str | None:
    """Check for a C compiler with the headers of the C library."""
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        return "no cc, gcc or clang on PATH"
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text('#include <stdio.h>\nint main(void) { return puts("") < 0; }\n')
        return command_fails(found, "-o", str(source.with_suffix("")), str(source))


def probe_rust() -> str | None:
    """Check for Cargo, and for a C compiler, which crates with code in C need."""
    return missing_commands("cargo") or command_fails("cargo", "--version") or probe_cc()


def probe_spark() -> str | None:
    """Check for PySpark in this environment and a Java runtime."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    return missing_commands("java")


def probe_cluster() -> str | None:
    """Check for everything that e2e/cluster needs to make Kubernetes nodes here; it builds the rest itself."""
    missing = probe_root() or probe_go() or missing_commands("containerd", "runc", "iptables", "conntrack", "nsenter")
    if missing:
        return missing
    if not Path("/usr/lib/cni/bridge").exists():
        return "no network plugins in /usr/lib/cni"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "control groups are not of version 1"
    return command_fails("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true")


def probe_browser() -> str | None:
    """Check for a headless browser."""
    names = ("chromium", "chromium-browser", "google-chrome", "firefox")
    return None if any(shutil.which(name) for name in names) else "no chromium, google-chrome or firefox on PATH"


def probe_axe() -> str | None:
    """Check for axe-core, which a package of the development environment carries."""
    return None if importlib.util.find_spec("axe_playwright_python") is not None else "axe-core is not installed"


def probe_openssl() -> str | None:
    """Check for the openssl command, which can violate protocols on purpose."""
    return missing_commands("openssl")


def probe_curl() -> str | None:
    """Check for the curl command, with which the pages in docs/ query the sidecar."""
    return missing_commands("curl")


def probe_buildah() -> str | None:
    """Check for buildah, which builds images without a daemon."""
    return missing_commands("buildah")


def probe_prometheus() -> str | None:
    """Check for Prometheus and promtool, for tests of scraping."""
    return missing_commands("prometheus", "promtool")


def probe_helm() -> str | None:
    """Check for Helm 3, as `scripts/helm` finds it."""
    return None if helm_program() is not None else "scripts/helm does not find Helm"


def probe_api_server() -> str | None:
    """Check for the programs of an API server of Kubernetes with its store and its client."""
    missing = [name for name in ("etcd", "kube-apiserver", "kubectl") if kubernetes_program(name) is None]
    return f"{missing[0]} was not built" if missing else None


def probe_object_store() -> str | None:
    """Check for a server that speaks S3."""
    return None if object_store_program() is not None else "none was built"


def probe_porcupine() -> str | None:
    """Check for the second judge of histories."""
    return None if porcupine_program() is not None else "it was not built"


def probe_bundle_validator() -> str | None:
    """Check for the validator of OLM bundles."""
    return None if bundle_validator_program() is not None else "it was not built"


def probe_chart_registry() -> str | None:
    """Check for an OCI registry to push charts to."""
    return None if chart_registry_program() is not None else "none was built"


def probe_gitops_judge() -> str | None:
    """Check for the interpreters of health checks."""
    return None if gitops_judge_program() is not None else "it was not built"


def probe_speedups() -> str | None:
    """Check for a compiled hot path, also if GANTRY_SPEEDUPS=off: tests compare both paths in one process."""
    return load_native()[1] or None


NEEDS: dict[str, Need] = {
    need.name: need
    for need in (
        Need("root", probe_root, "run again with sudo"),
        Need("loop", probe_loop, "run as root on a machine, not in a container; apt-get install e2fsprogs mount"),
        Need("strace", probe_strace, "apt-get install strace"),
        Need("memory_group", probe_memory_group, "run as root where cgroups are writable"),
        Need("java", probe_java, "apt-get install openjdk-17-jdk-headless maven"),
        Need("go", probe_go, "on Debian 12: apt-get install -t bookworm-backports golang-go"),
        Need("node", probe_node, "apt-get install nodejs npm"),
        Need("rust", probe_rust, "install Rust 1.88 or newer with rustup; apt-get install gcc libc6-dev"),
        Need("cc", probe_cc, "apt-get install gcc libc6-dev"),
        Need("spark", probe_spark, "scripts/setup spark, and apt-get install openjdk-17-jre-headless"),
        Need(
            "cluster",
            probe_cluster,
            "run as root on a machine; apt-get install containerd runc containernetworking-plugins iptables conntrack",
        ),
        Need("browser", probe_browser, "apt-get install chromium"),
        Need("axe", probe_axe, "scripts/setup dev", promise="browser"),
        Need("speedups", probe_speedups, "apt-get install gcc libc6-dev python3-dev, then scripts/setup dev"),
        Need("curl", probe_curl, "apt-get install curl"),
        Need("openssl", probe_openssl, "apt-get install openssl"),
        Need("buildah", probe_buildah, "apt-get install buildah"),
        Need("helm", probe_helm, "scripts/kubernetes helm, which needs Go"),
        Need("api_server", probe_api_server, "scripts/kubernetes, which needs Go"),
        Need("object_store", probe_object_store, "scripts/object-store, which needs Go"),
        Need("porcupine", probe_porcupine, "scripts/porcupine, which needs Go"),
        Need("bundle_validator", probe_bundle_validator, "scripts/bundle-validator, which needs Go"),
        Need("chart_registry", probe_chart_registry, "scripts/chart-registry, which needs Go"),
        Need("gitops_judge", probe_gitops_judge, "scripts/gitops-judge, which needs Go"),
        Need("prometheus", probe_prometheus, "apt-get install prometheus; it also starts a service, see .ci/run"),
    )
}

NOT_RUN_TALLY = pytest.StashKey[NotRunTally]()
SKIP_PREFIX = "not run here: "
NOT_RUN = "not run here"
"""The property of a report with the missing need."""


def parse_promises(text: str) -> frozenset[str]:
    """Parse a comma-separated list of needs. Raises for an unknown name."""
    names = frozenset(word for word in (part.strip() for part in text.split(",")) if word)
    unknown = names - NEEDS.keys()
    if unknown:
        raise pytest.UsageError(
            f"{REQUIRE_VARIABLE} names {', '.join(sorted(unknown))}; known: {', '.join(sorted(NEEDS))}"
        )
    return names


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and read the promises."""
    for need in NEEDS.values():
        config.addinivalue_line("markers", f"{need.marker}: skipped, and counted, without it ({need.remedy})")
    promised = parse_promises(os.environ.get(REQUIRE_VARIABLE, ""))
    tally = config.stash[NOT_RUN_TALLY] = NotRunTally(promised)
    config.pluginmanager.register(tally, "gantry-not-run")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the test before its fixtures, or fail if the need was promised."""
    require_needs(item, [need for need in NEEDS.values() if item.get_closest_marker(need.marker) is not None])


def require_needs(item: pytest.Item, needs: Sequence[Need]) -> None:
    """Skip and count a test whose needs are not met, or fail it if they were promised.

    Other plugins call this for needs of their own, without a marker of this plugin.
    """
    tally = item.config.stash[NOT_RUN_TALLY]
    missing = [(need, reason) for need in needs if (reason := tally.missing(need)) is not None]
    for need, reason in missing:
        promise = next((name for name in (need.name, need.promise) if name in tally.promised), None)
        if promise is not None:
            pytest.fail(f"{REQUIRE_VARIABLE} promises {promise}, but {reason} (remedy: {need.remedy})", pytrace=False)
    if missing:
        need, reason = missing[0]
        item.user_properties.append((NOT_RUN, [need.name, reason, need.remedy]))
        pytest.skip(f"{SKIP_PREFIX}needs {need.name}, {reason} (remedy: {need.remedy})")


def other_skips(reporter: pytest.TerminalReporter) -> dict[str, int]:
    """Return the reasons of skips that this plugin did not cause; those tests did not run here either."""
    counts: dict[str, int] = {}
    for report in reporter.stats.get("skipped", ()):
        details = report.longrepr
        reason = str(details[2] if isinstance(details, tuple) else details).removeprefix("Skipped: ")
        if not reason.startswith(SKIP_PREFIX) and not hasattr(report, "wasxfail"):
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def pytest_collection_finish(session: pytest.Session) -> None:
    """Record how many tests this run selects."""
    session.config.stash[NOT_RUN_TALLY].selected = len(session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: Sequence[str]) -> None:
    """Record the number in a run with worker processes, each of which collects all tests."""
    node.config.stash[NOT_RUN_TALLY].selected = len(ids)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Print the table, even if it is empty, so that its absence need not be interpreted."""
    tally = config.stash[NOT_RUN_TALLY]
    rows = [(name, count, reason, remedy) for (name, reason, remedy), count in tally.not_run.items()]
    rows += [("(skip)", count, reason, "") for reason, count in other_skips(terminalreporter).items()]
    rows += [(name, *row) for name, row in tally.left_out.items()]
    unreached = 0 if config.option.collectonly else tally.selected - tally.finished
    if unreached:
        rows.append(("(stop)", unreached, "the run ended before them", ""))
    terminalreporter.section("not run here")
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        terminalreporter.line("the run was incomplete: some tests were not reached")
    elif not rows and not config.option.collectonly:
        terminalreporter.line("none: every selected test ran on this machine")
    if rows:
        terminalreporter.line(f"{'needs':<16} {'tests':>5}  why, and the remedy")
    for name, count, reason, remedy in sorted(rows):
        terminalreporter.line(f"{name:<16} {count:>5}  {reason}{f' -- {remedy}' if remedy else ''}")
