"""The modules that are compiled from their own Python source, and what a build of them leaves.

    modules/manifest.json                                   this description
    modules/gantry_modules__mypyc.<suffix>                  the code of all modules
    modules/gantry_proxy/http2/frames.<suffix>  ...         one small file for each module

The compiler, mypyc, calls methods and reads attributes of the classes in these modules without a lookup by name. It
writes constants of what they import into the code, and expects values of the types that it has seen there. So all
modules of Gantry that they import, directly or not, count as sources.

The build hook (`hatch_build.py` at the top of the repository) loads this file by its path, so it imports no other
module of Gantry.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

NAMES: Final = (
    "gantry_proxy.ack_batches",
    "gantry_proxy.handlers.acknowledging",
    "gantry_proxy.handlers.sending",
    "gantry_proxy.http2.connection",
    "gantry_proxy.http2.frames",
    "gantry_proxy.http2.streams",
    "gantry_proxy.rpc.call",
    "gantry_proxy.rpc.compression",
    "gantry_proxy.rpc.incoming",
    "gantry_proxy.rpc.protocol",
    "gantry_proxy.rpc.server",
    "gantry_proxy.rpc.shares",
    "gantry_proxy.send_batches",
    "gantry_proxy.translation.handles",
    "gantry_proxy.translation.outgoing",
)
"""The modules that run for each call of the proxy and gain from it. Those that mostly call C functions do not."""

FOLDER: Final = "modules"
GROUP: Final = "gantry_modules"
LIBRARY: Final = f"{GROUP}__mypyc"
"""The name under which the compiled modules import the code of all of them; mypyc makes it from the group."""
MANIFEST: Final = "manifest.json"


class Manifest(NamedTuple):
    """What a build has compiled, and from what."""

    suffix: str
    """The end of the names of compiled files, which has the version of Python and the platform."""

    files: dict[str, list[str]]
    """The size and the SHA-256 of each compiled file, by its path in the folder."""

    sources: list[str]
    """The paths of the sources, from the folder of all packages."""

    sources_hash: str


def source_of(name: str) -> Path:
    """Return the path of a module's source, from the folder of all packages."""
    return Path(*name.split(".")).with_suffix(".py")


def find_sources(root: Path) -> list[str]:
    """Return the sources of the modules in a tree, and of all that they import; none if the tree lacks the modules."""
    found: set[Path] = set()
    waiting = {source_of(name) for name in NAMES if (root / source_of(name)).is_file()}
    while waiting:
        found |= waiting
        waiting = {path for module in waiting for path in _imported_by(root, module)} - found
    return sorted(map(str, found))


def hash_sources(root: Path, sources: list[str]) -> str:
    """Return a hash of these files. Raises OSError if one is missing."""
    digest = hashlib.sha256()
    for name in sources:
        content = (root / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def describe(folder: Path, suffix: str, root: Path) -> Manifest:
    """Return the manifest of the compiled files in a folder, which were built from the sources in ``root``."""
    files = {str(path.relative_to(folder)): _describe_file(path) for path in sorted(folder.rglob(f"*{suffix}"))}
    sources = find_sources(root)
    return Manifest(suffix, files, sources, hash_sources(root, sources))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest._asdict(), indent=1), encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in a folder; None if there is no readable one."""
    try:
        found: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {str(name): [str(size), str(digest)] for name, (size, digest) in found["files"].items()}
        return Manifest(str(found["suffix"]), files, list(found["sources"]), str(found["sources_hash"]))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None


def find_fault(folder: Path, manifest: Manifest, suffix: str, root: Path) -> str:
    """Return why the compiled files must not be used, in one line; empty if they may be.

    The loader does not notice a truncated file: the process would end with SIGBUS.
    """
    if manifest.suffix != suffix:
        return f"not built for {suffix}, but for {manifest.suffix}; run scripts/setup"
    for name, (size, _) in manifest.files.items():
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            return f"cannot be loaded: {name}: {error.strerror}; run scripts/setup"
        if str(found) != size:
            return f"cannot be loaded: {name} has {found} bytes instead of {size}; run scripts/setup"
    try:
        is_same = hash_sources(root, manifest.sources) == manifest.sources_hash
    except OSError:
        is_same = False
    return "" if is_same else "built from other sources; run scripts/setup"


def is_undamaged(folder: Path, manifest: Manifest) -> bool:
    """Return whether the compiled files have the content that was built."""
    try:
        return all(_describe_file(folder / name) == expected for name, expected in manifest.files.items())
    except OSError:
        return False


def _describe_file(path: Path) -> list[str]:
    content = path.read_bytes()
    return [str(len(content)), hashlib.sha256(content).hexdigest()]


def _imported_by(root: Path, module: Path) -> set[Path]:
    """Return the sources in a tree that a module imports."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse((root / module).read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        else:
            continue
        for name in names:
            package = Path(*name.split("."))
            forms = (package.with_suffix(".py"), package.with_suffix(".pyi"), package / "__init__.py")
            found.update(path for path in forms if (root / path).is_file())
    return found
