"""The contents of an image or a lock as components of an SBOM, with what is known about their dependencies.

    requirements/NAME.txt            the version and hashes of each locked package, and which package requires it
    */NAME-VERSION.dist-info         an installed Python package: its licence, its shared libraries, SBOMs of its parts
    *.whl, *.jar                     a package as a file; a jar also names the libraries that were merged into it
    var/lib/dpkg, usr/share/doc      Debian's packages, their files, dependencies and licences
    pyvenv.cfg, release              the Python of a virtual environment, and a Java

A component is listed once: a file that belongs to a package of Debian is a part of that package. Everything is read
from the folder that is named, and a symbolic link out of it is not followed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.exceptions import InvalidSpdxLicenseException
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence
from cyclonedx.model.license import License
from packageurl import PackageURL

DISTRIBUTION: Final = "gantry-mq"
"""The name of Gantry's own package."""

PIN: Final = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?: ; [^\\]+)? \\$")
HASH: Final = re.compile(r"^    --hash=sha256:(?P<digest>[0-9a-f]{64})(?: \\)?$")
REQUIRER: Final = re.compile(r"^    #(?: via|  ) (?P<name>[A-Za-z0-9._-]+)(?: \(pyproject\.toml\))?$")
"""A package that requires the one above. Lines of other forms name files in which a package is listed."""

SHARED_LIBRARY: Final = re.compile(r"\.so(\.[0-9.]+)?$")
WHEEL: Final = re.compile(r"^(?P<name>[^-]+)-(?P<version>[^-]+)(-[^-]+)+\.whl$")
JAR: Final = re.compile(r"^(?P<artifact>.+?)-(?P<version>\d[^/]*)\.jar$")
DEBIAN_LICENCE: Final = re.compile(r"^License: *(\S.*?) *$", re.MULTILINE)
APACHE_LICENCE_PAGE: Final = "apache.org/licenses/license-2.0"
"""A part of the address with which most jars name their licence."""

LICENCE_NAMES: Final = {
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""The SPDX identifiers of names in packages' metadata that mean one licence; others keep their name."""

LICENCE_CHARACTERS_MAX: Final = 100
"""A longer value of a package's field License is the text of a licence, not its name."""

KERNEL_FOLDERS: Final = frozenset({"proc", "sys", "dev"})
"""Folders at the top of a root file system that a running kernel fills."""


class SbomError(Exception):
    """An SBOM cannot be made or is not valid; the text names the cause and the remedy."""


@dataclass(frozen=True)
class LockedPackage:
    """One package of a lock file."""

    name: str
    version: str
    digests: tuple[str, ...]
    """The SHA-256 of each file of this version that may be installed."""

    required_by: frozenset[str]
    """The names of the packages that require it."""

    @property
    def ref(self) -> str:
        """The identifier of its component."""
        return python_url(self.name, self.version).to_string()


@dataclass
class Inventory:
    """Components and their dependencies, each by the identifier that other components use for it."""

    components: dict[str, Component] = field(default_factory=dict)
    dependencies: dict[str, set[str]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """The component to which a file belongs, by the path of the file in the image."""

    def add(self, component: Component, location: str = "") -> str:
        """Add a component, or a place at which a known one was found, and return its identifier."""
        ref = str(component.bom_ref.value)
        known = self.components.setdefault(ref, component)
        if location:
            known.evidence = known.evidence or ComponentEvidence()
            known.evidence.occurrences = [*known.evidence.occurrences, Occurrence(location=f"/{location}")]
        return ref

    def depend(self, ref: str, needed: Iterable[str]) -> None:
        """Record what a component needs. A component does not need itself."""
        self.dependencies.setdefault(ref, set()).update(set(needed) - {ref})


def normalize(name: str) -> str:
    """Return the name of a Python package as package indexes and locks write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def python_url(name: str, version: str) -> PackageURL:
    """Return the package URL of a Python package."""
    return PackageURL("pypi", None, normalize(name), version)


def package(url: PackageURL, kind: ComponentType = ComponentType.LIBRARY, **fields: Any) -> Component:
    """Return the component of a package URL, which is its identifier, too."""
    return Component(
        type=kind, group=url.namespace if url.type == "maven" else None, name=url.name, version=url.version, purl=url,
        bom_ref=url.to_string(), **fields,
    )  # fmt: skip


def sha256(digest: str) -> HashType:
    """Return a hash of the document for a hexadecimal digest."""
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def digest_of(path: Path) -> HashType:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return sha256(hashlib.file_digest(file, "sha256").hexdigest())


def read_lock(path: Path) -> list[LockedPackage]:
    """Return the packages of a lock file. Raises SbomError for a line that `make lock` does not write."""
    if not path.is_file():
        raise SbomError(f"lock file {path} not found; name a file of requirements/")
    pins: list[tuple[str, str, list[str], set[str]]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if pin := PIN.match(line):
            pins.append((pin["name"], pin["version"], [], set()))
        elif pins and (digest := HASH.match(line)):
            pins[-1][2].append(digest["digest"])
        elif pins and (requirer := REQUIRER.match(line)):
            pins[-1][3].add(normalize(requirer["name"]))
        elif line.strip() and not line.lstrip().startswith("#"):
            raise SbomError(f"{path}, line {number}: {line.strip()!r} is neither a pin nor a hash; run: make lock")
    unhashed = [f"{name}=={version}" for name, version, digests, _ in pins if not digests]
    if unhashed or not pins:
        raise SbomError(f"{path}: no hashes for {', '.join(unhashed) or 'any package'}; run: make lock")
    return [LockedPackage(name, version, tuple(digests), frozenset(by)) for name, version, digests, by in pins]


def locked_files(locked: LockedPackage) -> ExternalReference:
    """Return the reference to the files that the lock admits; hashes of the component would be those of one file."""
    return ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(locked.ref),
        comment="the hashes of all files that the lock admits, of which one is installed",
        hashes=[sha256(digest) for digest in locked.digests],
    )


def add_locked_dependencies(inventory: Inventory, locked: Iterable[LockedPackage]) -> None:
    """Record which components require the locked ones. Only components that the inventory has are named."""
    named: dict[str, set[str]] = {}
    pinned = [one for one in locked if one.ref in inventory.components]
    own = [ref for ref in inventory.components if ref.startswith(f"pkg:pypi/{DISTRIBUTION}@")]
    for name, ref in [(one.name, one.ref) for one in pinned] + [(DISTRIBUTION, ref) for ref in own]:
        named.setdefault(name, set()).add(ref)
    for one in pinned:
        for requirer in one.required_by:
            for ref in named.get(requirer, ()):
                inventory.depend(ref, [one.ref])


def licences_from(names: Iterable[str]) -> list[License]:
    """Return licences by their names. An SPDX expression is used only alone, as CycloneDX requires."""
    factory, found = LicenseFactory(), sorted({LICENCE_NAMES.get(name, name) for name in names if name})
    if len(found) == 1:
        return [factory.make_from_string(found[0])]
    licences: dict[str, License] = {}
    for name in found:
        try:
            licence = factory.make_with_id(name)
        except InvalidSpdxLicenseException:
            licence = factory.make_with_name(name)
        licences[str(licence.id or licence.name)] = licence
    return list(licences.values())


def python_licences(distribution: Distribution) -> list[License]:
    """Return the licences that a Python package declares: as an expression, by name, or as classifiers."""
    fields = distribution.metadata
    for name in ("License-Expression", "License"):
        value = (fields[name] or "").strip() if name in fields else ""
        if value and value != "UNKNOWN" and "\n" not in value and len(value) <= LICENCE_CHARACTERS_MAX:
            return licences_from([value])
    classifiers = [one.split(" :: ") for one in fields.get_all("Classifier") or () if one.startswith("License :: ")]
    return licences_from(words[-1] for words in classifiers if words[-1] != "OSI Approved")


def python_component(
    folder: Path, place: str, locked: dict[str, LockedPackage]
) -> tuple[Component, list[str]]:  # fmt: skip
    """Return the component of a ``.dist-info`` folder, and the paths of its files relative to the image.

    The shared libraries of the package, which were compiled from other languages, are parts of the component.
    """
    distribution = Distribution.at(folder)
    name, version = distribution.metadata["Name"], distribution.version
    if not name or not version:
        raise SbomError(f"{folder} has no METADATA with a name and a version; install the package again")
    kind = ComponentType.APPLICATION if normalize(name) == DISTRIBUTION else ComponentType.LIBRARY
    url = python_url(name, version)
    paths: list[str] = []
    parts: list[Component] = []
    for file in distribution.files or ():
        paths.append(os.path.normpath(f"{Path(place).parent}/{file}"))
        if SHARED_LIBRARY.search(file.name) and file.hash and file.hash.mode == "sha256":
            digest = base64.urlsafe_b64decode(file.hash.value + "==").hex()
            part = f"{url.to_string()}#{file}"
            parts.append(Component(type=ComponentType.FILE, name=str(file), bom_ref=part, hashes=[sha256(digest)]))
    files = [locked_files(locked[url.to_string()])] if url.to_string() in locked else []
    return package(
        url, kind, licenses=python_licences(distribution), external_references=files, components=parts
    ), paths  # fmt: skip


def published_parts(folder: Path) -> Iterator[Component]:
    """Yield the parts that a package lists in CycloneDX documents of its own (PEP 770), such as crates of Rust."""
    for path in sorted(folder.glob("sboms/*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise SbomError(f"{path} is not JSON ({error}); install the package again") from error
        waiting = list(document.get("components", ())) if document.get("bomFormat") == "CycloneDX" else []
        while waiting:
            part = waiting.pop()
            waiting += part.get("components", ())
            if "purl" in part:
                yield package(PackageURL.from_string(part["purl"]), licenses=licences_from(_licence_names(part)))


def _licence_names(part: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the licences of a component in JSON."""
    for one in part.get("licenses", ()):
        licence = one.get("license", {})
        yield one.get("expression") or licence.get("id") or licence.get("name") or ""


def java_components(path: Path) -> list[Component]:
    """Return the component of a jar, and those of the libraries that were merged into it."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        manifest = _properties(archive.read("META-INF/MANIFEST.MF"), ":") if "META-INF/MANIFEST.MF" in names else {}
        poms = [one for one in names if one.startswith("META-INF/maven/") and one.endswith("/pom.properties")]
        found = [_properties(archive.read(one), "=") for one in sorted(poms)]
    named = [one for one in found if one.keys() >= {"groupId", "artifactId", "version"}]
    urls = [PackageURL("maven", one["groupId"], one["artifactId"], one["version"]) for one in named]
    own = next((url for url in urls if f"{path.stem}-".startswith(f"{url.name}-{url.version}-")), None)
    if own is None:
        own = _unnamed_jar(path, {} if urls else manifest)
    elif classifier := path.stem.removeprefix(f"{own.name}-{own.version}").lstrip("-"):
        own = own._replace(qualifiers={"classifier": classifier})
    licence = manifest.get("Bundle-License", "").partition(";")[0].strip()
    if APACHE_LICENCE_PAGE in licence.lower():
        licence = "Apache-2.0"
    jar = package(own, hashes=[digest_of(path)], licenses=licences_from([licence]))
    return [jar, *(package(url) for url in urls if (url.name, url.version) != (own.name, own.version))]


def _unnamed_jar(path: Path, manifest: dict[str, str]) -> PackageURL:
    """Return the package URL of a jar without Maven's files: by its file name, with the group of its manifest."""
    match = JAR.match(path.name)
    artifact, version = (match["artifact"], match["version"]) if match else (path.stem, None)
    group, dot, name = manifest.get("Bundle-SymbolicName", "").partition(";")[0].rpartition(f".{artifact}")
    if not dot or name:
        group = manifest.get("Implementation-Vendor-Id", "")
    return PackageURL("maven" if group else "generic", group or None, artifact, version)


def _properties(content: bytes, separator: str) -> dict[str, str]:
    """Return the lines of a manifest or of a properties file as a dictionary; the first value of a name counts."""
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\n ", "")
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, found, value = line.partition(separator)
        if found:
            fields.setdefault(name.strip(), value.strip().strip('"'))
    return fields


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a control file of Debian, without continuation lines."""
    for paragraph in re.split(r"\n{2,}", text.strip()):
        lines = [line.partition(":") for line in paragraph.splitlines() if not line.startswith((" ", "\t"))]
        yield {name: value.strip() for name, _, value in lines}


def add_debian_packages(inventory: Inventory, root: Path) -> None:
    """Add the operating system, its packages and their dependencies, and the owner of each of their files."""
    status = inside(root, "var/lib/dpkg/status")
    release = inside(root, "etc/os-release") or inside(root, "usr/lib/os-release")
    if status is None or release is None:
        raise SbomError(f"{root} has no var/lib/dpkg/status or no etc/os-release; name the root of an image on Debian")
    system = _properties(release.read_bytes(), "=")
    name, version = system.get("ID", "debian"), system.get("VERSION_ID", "")
    base = Component(
        type=ComponentType.OPERATING_SYSTEM, name=name, version=version or None, bom_ref=f"operating-system:{name}",
        description=system.get("PRETTY_NAME"),
    )  # fmt: skip
    inventory.add(base)
    texts = paragraphs(status.read_text(encoding="utf-8", errors="replace"))
    installed = [one for one in texts if one.get("Status", "").endswith(" installed")]
    refs: dict[str, str] = {}
    for one in installed:
        url = debian_url(one, name, f"{name}-{version}" if version else name)
        refs[one["Package"]] = inventory.add(package(url, licenses=debian_licences(root, one["Package"])))
        for path in _owned_paths(root, one):
            inventory.owners[path] = url.to_string()
    for one in installed:  # a virtual package is provided by others
        for virtual in re.findall(r"[a-z0-9][a-z0-9+.-]+", re.sub(r"\([^)]*\)", "", one.get("Provides", ""))):
            refs.setdefault(virtual, refs[one["Package"]])
    for one in installed:
        needs = ",".join(one[key] for key in ("Pre-Depends", "Depends") if key in one)
        groups = [re.findall(r"(?:^|\|)\s*([a-z0-9][a-z0-9+.-]+)", group) for group in needs.split(",")]
        found = [next((refs[word] for word in words if word in refs), None) for words in groups]
        inventory.depend(refs[one["Package"]], [ref for ref in found if ref])
    inventory.depend("operating-system:" + name, refs.values())


def debian_url(fields: dict[str, str], system: str, release: str) -> PackageURL:
    """Return the package URL of a package of Debian, with its source package, to which vulnerabilities are assigned."""
    qualifiers = {"arch": fields.get("Architecture", "all"), "distro": release}
    if "Source" in fields:
        source, _, version = fields["Source"].partition(" (")
        qualifiers["upstream"] = f"{source}@{version.rstrip(')')}" if version else source
    return PackageURL("deb", system, fields["Package"], fields["Version"], qualifiers)


def debian_licences(root: Path, name: str) -> list[License]:
    """Return the licences in the copyright file of a package, if the file exists and is machine-readable."""
    path = inside(root, f"usr/share/doc/{name}/copyright")
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    return licences_from(DEBIAN_LICENCE.findall(text)) if text.lstrip().startswith("Format:") else []


def _owned_paths(root: Path, fields: dict[str, str]) -> list[str]:
    """Return the paths of the files of a package of Debian, relative to the root."""
    names = (f"{fields['Package']}.list", f"{fields['Package']}:{fields.get('Architecture', '')}.list")
    lists = [inside(root, f"var/lib/dpkg/info/{name}") for name in names]
    lines = next((path.read_text(encoding="utf-8") for path in lists if path), "").splitlines()
    return [line.lstrip("/") for line in lines]


def inside(root: Path, name: str) -> Path | None:
    """Return the path of a file of the image; None if there is no file, or a link leads out of the image."""
    path = (root / name).resolve()
    return path if path.is_relative_to(root.resolve()) and path.is_file() else None


def add_image_files(inventory: Inventory, root: Path, locked: dict[str, LockedPackage]) -> None:
    """Add what lies in the image besides the packages of Debian: Python packages, wheels, jars, Pythons and Javas."""
    jars: list[tuple[Path, str]] = []
    for path, place in _places(root):
        if place in inventory.owners:
            continue
        if path.name == "METADATA" and path.parent.suffix == ".dist-info":
            _add_python_package(inventory, path.parent, str(Path(place).parent), locked)
        elif wheel := WHEEL.match(path.name):
            url = python_url(wheel["name"], wheel["version"])
            inventory.add(package(url, hashes=[digest_of(path)]), place)
        elif path.suffix == ".jar":
            jars.append((path, place))
    for path, place in jars:  # after the packages that they may belong to
        jar, *merged = java_components(path)
        ref = inventory.add(jar, place)
        inventory.depend(ref, [inventory.add(one) for one in merged])
        if place in inventory.owners:
            inventory.depend(inventory.owners[place], [ref])


def _places(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file of the image with its path relative to the root, in a fixed order."""
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = sorted(one for one in folders if here.parts or one not in KERNEL_FOLDERS)
        for name in sorted(files):
            if not Path(folder, name).is_symlink():
                yield Path(folder, name), str(here / name)


def _add_python_package(
    inventory: Inventory, folder: Path, place: str, locked: dict[str, LockedPackage]
) -> None:  # fmt: skip
    """Add an installed Python package, the parts that it lists, and the hashes of its lock."""
    component, paths = python_component(folder, place, locked)
    ref = inventory.add(component, place)
    inventory.owners.update(dict.fromkeys(paths, ref))
    if component.name != DISTRIBUTION:  # Gantry's own document lists what it requires, not parts
        inventory.depend(ref, [inventory.add(part) for part in published_parts(folder)])


def add_runtimes(inventory: Inventory, root: Path) -> set[str]:
    """Add each Python and Java that is no package of Debian, and return the identifiers of all that the image has."""
    found: set[str] = set()
    for path, place in _places(root):
        if path.name == "pyvenv.cfg":
            fields = _properties(path.read_bytes(), "=")
            owner = inventory.owners.get(fields.get("executable", "").lstrip("/"))
            version = fields.get("version", "")
            product = package(
                PackageURL("generic", None, "python", version), ComponentType.PLATFORM,
                cpe=f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*", licenses=licences_from(["PSF-2.0"]),
            )  # fmt: skip
            found.add(owner or inventory.add(product, fields.get("executable", place).lstrip("/")))
        elif path.name == "release" and (path.parent / "bin/java").exists():
            fields = _properties(path.read_bytes(), "=")
            url = PackageURL("generic", None, "openjdk", fields.get("JAVA_VERSION"))
            product = package(url, ComponentType.PLATFORM, publisher=fields.get("IMPLEMENTOR"))
            found.add(inventory.owners.get(place) or inventory.add(product, place))
    return found
