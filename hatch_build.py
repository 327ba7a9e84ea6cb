"""The build hook: it compiles the hot path for a wheel or an editable install, where that is possible.

    Cython   broker/src/gantry_speedups/_native.pyx                  -> gantry_speedups/_native.<suffix>
    mypyc    the Python modules of gantry_speedups/module_list.py    -> gantry_speedups/modules/

Both translate to C, which the machine's C compiler compiles. They work on a copy in a temporary folder, so the source
tree gets the finished files only: all, or none. GANTRY_SPEEDUPS decides about failures:

    auto       without compiler, headers or Cython, and after a failed compilation, install with the Python path
    require    fail
    off        compile nothing; a wheel is pure Python

The reason is also written to `build.txt` in the package, where `gantry_speedups.reason` finds it at run time. The
output of a failed compilation is always printed (pip shows it with --verbose).

`python hatch_build.py` builds in the source tree, as an editable install does, and prints the result in one line. It
builds and prints nothing if everything is up to date. Every `scripts/setup` runs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE: Final = "gantry_speedups"
SOURCE_FOLDER: Final = Path("broker/src") / PACKAGE
COMPILERS: Final = ("cc", "gcc", "clang")
"""The compilers that are tried if neither CC nor the one that Python was built with is there."""

MODES: Final = ("auto", "require", "off")
WHEN: Final = "when Gantry was built"
SUFFIX: Final = str(sysconfig.get_config_var("EXT_SUFFIX"))
MODULE_FILE: Final = f"_native{SUFFIX}"
BUILD_PACKAGES: Final = ("Cython", "mypy", "setuptools", "msgspec", "types-protobuf")
"""The last two have the types of what compiled modules use; without them a class of msgspec could not be compiled."""
COMPILER_VARIABLES: Final = ("CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED")
"""The environment variables besides CC with which setuptools changes the command lines of the compiler."""

UP_TO_DATE: Final = "up to date"
COMPILE: Final = "--compile"
COMPILE_MODULES: Final = "--compile-modules"
"""The arguments with which this file runs itself, to capture the output of the compilers."""


class Build(NamedTuple):
    """The result of one build."""

    reason: str
    """Why there is no compiled module, in one line; empty if there is one."""

    output: str = ""
    """The output of a failed compilation."""

    compiler: str = ""
    """The compiler that was used, or UP_TO_DATE."""

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"compiled hot path ({self.compiler})" if not self.reason else f"Python hot path: {self.reason}"


class RequiredModuleMissing(Exception):
    """GANTRY_SPEEDUPS=require, and the module could not be built."""


def load_build_record(folder: Path) -> ModuleType:
    """Return the module `gantry_speedups.build_record` of the source tree; the package itself is not imported."""
    return _load_file(folder / "build_record.py")


def load_module_list(folder: Path) -> ModuleType:
    """Return the module `gantry_speedups.module_list` of the source tree in the same way."""
    return _load_file(folder / "module_list.py")


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gantry_speedups_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "a path of a Python file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_mode() -> str:
    """Return GANTRY_SPEEDUPS, `auto` if it is unset. Raises SystemExit for an invalid value."""
    mode = os.environ.get("GANTRY_SPEEDUPS") or MODES[0]
    if mode not in MODES:
        raise SystemExit(f"GANTRY_SPEEDUPS={mode}: expected auto, require or off")
    return mode


def find_compiler() -> list[str] | None:
    """Return the command of a C compiler that exists: CC if it is set, else Python's own or a usual one."""
    given = os.environ.get("CC")
    candidates = (given,) if given else (sysconfig.get_config_var("CC"), *COMPILERS)
    for candidate in candidates:
        words = shlex.split(candidate or "")
        if words and shutil.which(words[0]):
            return words
    return None


def find_version(package: str) -> str | None:
    """Return the version of a package that builds need, or None if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def what_is_missing(compiler: list[str] | None) -> str:
    """Return what a compilation lacks, in one line; empty if it can be tried."""
    if compiler is None:
        return f"not built: no C compiler {WHEN}"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return f"not built: no Python headers {WHEN}"
    for package in BUILD_PACKAGES:
        if find_version(package) is None:
            return f"not built: no {package} {WHEN}"
    return ""


def compile_module(folder: Path, target: Path, sources_hash: str) -> Build:
    """Compile the Cython sources in a folder into the file ``target``."""
    compiler = find_compiler()
    if missing := what_is_missing(compiler):
        return Build(missing)
    assert compiler is not None, "a missing compiler has a reason"
    with tempfile.TemporaryDirectory(prefix="gantry-speedups-") as name:
        copy = Path(name, PACKAGE)
        copy.mkdir()
        for source in load_build_record(folder).sources_in(folder):
            shutil.copy(source, copy)
        with (copy / "_native.pyx").open("a", encoding="utf-8") as file:
            file.write(f'\nSOURCES_HASH = "{sources_hash}"\n')
        build = run_itself(COMPILE, Path(name), compiler)
        built = copy / MODULE_FILE
        if not build.reason:
            build = store(target, lambda: replace_file(target, built.read_bytes()), build)
    return build


def compile_modules(folder: Path, target: Path) -> Build:
    """Compile the Python modules of the hot path into the folder ``target``; nothing in a tree without them."""
    compiler, root, listed = find_compiler(), folder.parent, load_module_list(folder)
    if missing := what_is_missing(compiler):
        return Build(missing)
    assert compiler is not None, "a missing compiler has a reason"
    names = [name for name in listed.NAMES if (root / listed.source_of(name)).is_file()]
    if not names:
        return Build("", compiler=compiler[0])
    with tempfile.TemporaryDirectory(prefix="gantry-modules-") as name:
        copy = Path(name, "src")
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.new", listed.FOLDER))
        (copy / "modules.txt").write_text("\n".join(str(listed.source_of(one)) for one in names), encoding="utf-8")
        build = run_itself(COMPILE_MODULES, copy, compiler)
        if not build.reason:
            built = Path(name, "built")
            listed.write_manifest(built, listed.describe(built, SUFFIX, root))
            build = store(target, lambda: replace_folder(target, built), build)
    return build


def run_itself(argument: str, folder: Path, compiler: list[str]) -> Build:
    """Compile in a folder, in a process of its own whose output is kept."""
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).resolve()), argument],
        cwd=folder, env={**os.environ, "CC": shlex.join(compiler)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return Build("", compiler=compiler[0])
    what = f"build failed: the C compiler, Cython or mypyc reported an error {WHEN}"
    return Build(f"{what}; run scripts/setup or pip install --verbose to see it", done.stdout)


def store(target: Path, write: Callable[[], None], build: Build) -> Build:
    """Write what was built, and return the build, or why it cannot be written."""
    try:
        write()
    except OSError as error:
        return Build(f"not built: cannot write to {target.parent}: {error.strerror}")
    return build


def replace_file(target: Path, content: bytes) -> None:
    """Write a file durably, in one step; a running process keeps the old file, which it may have mapped."""
    draft = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def replace_folder(target: Path, content: Path) -> None:
    """Replace a folder by a copy of another one. A process that starts in between finds no manifest."""
    draft, old = (target.with_name(f"{target.name}.{os.getpid()}.{end}") for end in ("new", "old.new"))
    try:
        shutil.copytree(content, draft)
        if target.exists():
            target.rename(old)
        draft.rename(target)
    finally:
        for leftover in (draft, old):
            shutil.rmtree(leftover, ignore_errors=True)


def run_mypyc() -> None:
    """Translate and compile the modules of the list in the working directory. This runs in a process of its own."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    paths = Path("modules.txt").read_text(encoding="utf-8").split()
    group = load_module_list(Path(PACKAGE)).GROUP
    # Types of other packages that are not installed are unknown, which costs speed only where they are used.
    options = ["--ignore-missing-imports", "--follow-imports=silent", "--config-file=", "--cache-dir=/dev/null"]
    extensions = mypycify([*options, *paths], opt_level="2", debug_level="0", group_name=group)
    for extension in extensions:  # a warning of a new compiler is no reason to run Python
        extension.extra_compile_args = [one for one in extension.extra_compile_args if one != "-Werror"]
    command = Distribution({"name": PACKAGE, "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = "../built", "../objects"
    command.ensure_finalized()
    command.run()


def run_compiler() -> None:
    """Translate and compile the copy of the package in the working directory. This runs in a process of its own."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    flags = ["-O3"] if "CFLAGS" in os.environ else ["-O3", "-g0"]  # CFLAGS="-g -fsanitize=address" must keep its -g
    extension = Extension(f"{PACKAGE}._native", [f"{PACKAGE}/_native.pyx"], extra_compile_args=flags)
    extensions = cythonize([extension], quiet=True, language_level=3)
    command = Distribution({"name": PACKAGE, "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = ".", "objects"
    command.ensure_finalized()
    command.run()


def read_compiler_version(compiler: list[str] | None) -> str:
    """Return what the compiler prints about itself; empty if there is none, or it cannot be run."""
    if compiler is None:
        return ""
    try:
        return subprocess.run(
            [*compiler, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            check=False,
        ).stdout  # fmt: skip
    except OSError:
        return ""


def fingerprint_of(*sources_hashes: str) -> str:
    """Return a hash of everything that the result of a build depends on."""
    compiler = find_compiler()
    facts = [*sources_hashes, sys.version, MODULE_FILE, sysconfig.get_path("include"), what_is_missing(compiler)]
    facts += [str(compiler), read_compiler_version(compiler), Path(__file__).read_text()]
    facts += [str(find_version(package)) for package in BUILD_PACKAGES]
    facts += [str(os.environ.get(name)) for name in COMPILER_VARIABLES]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other build works in a folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def build_in_place(root: Path, mode: str) -> Build:
    """Build in the source tree, unless all is up to date: built from the same, and undamaged.

    What an earlier build has left is removed if there is nothing new, since it would be outdated. With `off` nothing is
    built or removed. A checkout that cannot be written gets neither files nor record. Raises RequiredModuleMissing.
    """
    folder = root / SOURCE_FOLDER
    record, listed = load_build_record(folder), load_module_list(folder)
    target, modules = folder / MODULE_FILE, folder / listed.FOLDER
    if mode == "off":
        if not target.exists():
            write_record(folder, "", f"not built: GANTRY_SPEEDUPS was off {WHEN}")
        return Build("switched off by GANTRY_SPEEDUPS=off")
    sources_hash = record.hash_sources(folder)
    fingerprint = fingerprint_of(sources_hash, listed.hash_sources(folder.parent, listed.find_sources(folder.parent)))
    module, has_modules = record.describe_module(target), has_usable_modules(folder, modules)
    if module and has_modules and record.read_record(folder) == (fingerprint, "", module):
        return Build("", compiler=UP_TO_DATE)
    build = compile_all(folder, target, modules, sources_hash)
    if build.reason:
        with contextlib.suppress(OSError):
            target.unlink()
        shutil.rmtree(modules, ignore_errors=True)
    write_record(folder, fingerprint, build.reason)
    report_failure(build, mode)
    return build


def has_usable_modules(folder: Path, modules: Path) -> bool:
    """Return whether the modules were built from the present sources, and are undamaged; or the tree has none."""
    listed, root = load_module_list(folder), folder.parent
    manifest = listed.read_manifest(modules)
    if manifest is None:
        return not listed.find_sources(root)
    return not listed.find_fault(modules, manifest, SUFFIX, root) and listed.is_undamaged(modules, manifest)


def compile_all(folder: Path, target: Path, modules: Path, sources_hash: str) -> Build:
    """Compile the file ``target`` and the folder ``modules``, or neither."""
    build = compile_module(folder, target, sources_hash)
    return build if build.reason else compile_modules(folder, modules)


def write_record(folder: Path, fingerprint: str, reason: str) -> None:
    """Write the record of a build beside the module, if the folder can be written."""
    record = load_build_record(folder)
    module = "" if reason else record.describe_module(folder / MODULE_FILE)
    text = record.record_text(record.BuildRecord(fingerprint, reason, module))
    with contextlib.suppress(OSError):
        replace_file(folder / record.RECORD, text.encode())


def report_failure(build: Build, mode: str) -> None:
    """Print the output of a failed compilation. Raises RequiredModuleMissing if the module is required."""
    if build.output:
        print(build.output, file=sys.stderr)
        print(
            "warning: the compiled hot path could not be built; its output is above, and Gantry is installed with the "
            "slower Python path", file=sys.stderr,
        )  # fmt: skip
    if build.reason and mode == "require":
        raise RequiredModuleMissing(f"GANTRY_SPEEDUPS=require: {build.reason}")


class SpeedupsBuildHook(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel, or builds it in the source tree for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, before files are collected. A wheel without the module stays pure and contains the reason."""
        root, mode = Path(self.root), read_mode()
        if version == "editable":
            with alone_in(root / SOURCE_FOLDER):
                self._show(build_in_place(root, mode))
            return
        folder = root / SOURCE_FOLDER
        record, listed = load_build_record(folder), load_module_list(folder)
        self._folder = tempfile.TemporaryDirectory(prefix="gantry-wheel-")
        target, modules = Path(self._folder.name, MODULE_FILE), Path(self._folder.name, listed.FOLDER)
        build = Build(f"not built: GANTRY_SPEEDUPS was off {WHEN}")
        if mode != "off":
            build = compile_all(folder, target, modules, record.hash_sources(folder))
            report_failure(build, mode)
        self._show(build)
        if build.reason:
            place = Path(self._folder.name, record.RECORD)
            place.write_text(record.record_text(record.BuildRecord(reason=build.reason)), encoding="utf-8")
            build_data["force_include"][str(place)] = f"{PACKAGE}/{record.RECORD}"
        else:
            build_data["force_include"][str(target)] = f"{PACKAGE}/{MODULE_FILE}"
            if modules.is_dir():
                build_data["force_include"][str(modules)] = f"{PACKAGE}/{listed.FOLDER}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary files, which are in the wheel now."""
        if version != "editable":
            self._folder.cleanup()

    def _show(self, build: Build) -> None:
        self.app.display_info(f"gantry: {build.summary}")


def main(arguments: list[str]) -> int:
    """Build in the source tree, or compile the working directory for another process."""
    if arguments in ([COMPILE], [COMPILE_MODULES]):
        run_compiler() if arguments == [COMPILE] else run_mypyc()
        return 0
    root = Path(__file__).resolve().parent
    try:
        with alone_in(root / SOURCE_FOLDER):
            build = build_in_place(root, read_mode())
    except RequiredModuleMissing as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    if build.compiler != UP_TO_DATE:
        print(f"setup: {build.summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
