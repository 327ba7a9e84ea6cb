"""Write and validate SBOMs: CycloneDX documents in JSON of the wheel and of the images.

    python scripts/sbom.py wheel requirements/gantry-mq.cdx.json
    python scripts/sbom.py image gantry /mnt/root sbom.cdx.json requirements/admin.txt requirements/proxy.txt
    python scripts/sbom.py validate sbom.cdx.json

The document of the wheel lists the locked runtime packages. It is made in the development environment, whose packages
declare their licences, and is part of the wheel. The document of an image lists what its root file system contains; the
Dockerfiles make it in their first stage. The same sources give the same bytes: the serial number is derived from the
content, and there is no time unless SOURCE_DATE_EPOCH sets one. A document that is not valid is not written.

The validation is that of the CycloneDX library: its copy of the schema, without a network. It also checks that each
identifier occurs once, and that the dependencies name components of the document, which a schema cannot.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import tomllib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from sbom_contents import (  # noqa: E402 - a script in the same folder, not a package
    DISTRIBUTION,
    Inventory,
    LockedPackage,
    SbomError,
    add_debian_packages,
    add_image_files,
    add_locked_dependencies,
    add_runtimes,
    licences_from,
    locked_files,
    normalize,
    package,
    python_licences,
    python_url,
    read_lock,
)

VERSION: Final = SchemaVersion.V1_7
"""The version of CycloneDX's specification that is written."""

ERROR_CHARACTERS_MAX: Final = 300
"""The part of a validation error that is printed; some contain the whole document."""


def wheel_document(root: Path, packages: Path) -> str:
    """Return the document of the wheel, from the runtime lock of a tree and the folder of installed packages.

    Raises SbomError if a locked version is not installed there: its licence would be unknown.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    main = package(
        python_url(project["name"], project["version"]), ComponentType.APPLICATION,
        description=project["description"], licenses=licences_from([project["license"]]),
    )  # fmt: skip
    inventory, locked = Inventory(), read_lock(root / "requirements/runtime.txt")
    folders = {name_of(path): path for path in packages.glob("*.dist-info")}
    for one in locked:
        if one.ref not in folders:
            raise SbomError(
                f"{one.name} {one.version} is not installed, so its licence is unknown; run: scripts/setup dev"
            )
        licences = python_licences(Distribution.at(folders[one.ref]))
        url = python_url(one.name, one.version)
        inventory.add(package(url, licenses=licences, external_references=[locked_files(one)]))
    main_ref = inventory.add(main)
    add_locked_dependencies(inventory, locked)
    del inventory.components[main_ref]
    return document_text(main, inventory)


def name_of(folder: Path) -> str:
    """Return the identifier of the package that a ``.dist-info`` folder is named for."""
    name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
    return python_url(name, version).to_string()


def image_document(image: str, root: Path, locks: Iterable[Path]) -> str:
    """Return the document of an image from its root file system. Raises SbomError if Gantry is not installed in it."""
    inventory = Inventory()
    locked: dict[str, LockedPackage] = {one.ref: one for path in locks for one in read_lock(path)}
    add_debian_packages(inventory, root)
    add_image_files(inventory, root, locked)
    own = next((one for one in inventory.components.values() if normalize(one.name) == DISTRIBUTION), None)
    if own is None:
        raise SbomError(f"{root} has no installed {DISTRIBUTION}; name the root file system of an image of Gantry")
    add_locked_dependencies(inventory, locked.values())
    inventory.depend(str(own.bom_ref.value), add_runtimes(inventory, root))
    main = Component(
        type=ComponentType.CONTAINER, name=image, version=own.version, licenses=own.licenses, bom_ref=f"image:{image}",
        purl=PackageURL("oci", None, image),
    )  # fmt: skip
    needed = {ref for refs in inventory.dependencies.values() for ref in refs}
    inventory.depend(f"image:{image}", inventory.components.keys() - needed)
    return document_text(main, inventory)


def document_text(main: Component, inventory: Inventory) -> str:
    """Return the document of a component and of what it contains or needs. Raises SbomError if it is not valid."""
    dependencies = [
        Dependency(BomRef(ref), [Dependency(BomRef(one)) for one in inventory.dependencies.get(ref, ())])
        for ref in (str(main.bom_ref.value), *inventory.components)
    ]
    library = this_component()
    library.external_references = []  # addresses, of which a document of Gantry has none
    metadata = BomMetaData(component=main, tools=ToolRepository(components=[library]))
    bom = Bom(components=inventory.components.values(), metadata=metadata, dependencies=dependencies)
    # The library makes a random number and the present time mandatory; the specification makes neither so.
    bom.serial_number = None  # type: ignore[assignment]
    metadata.timestamp = source_time()  # type: ignore[assignment]
    # The library's order does not depend on that of the arguments.
    text = make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string()
    document = json.loads(text)
    head = {key: document[key] for key in ("$schema", "bomFormat", "specVersion")}
    serial_number = uuid.uuid5(uuid.NAMESPACE_URL, text).urn
    text = json.dumps({**head, "serialNumber": serial_number, **document}, indent=2) + "\n"
    if faults := list(find_faults(text)):
        raise SbomError(f"the SBOM of {main.name} is not valid; correct scripts/sbom.py: {faults[0]}")
    return text


def source_time() -> datetime | None:
    """Return the time that SOURCE_DATE_EPOCH sets; None without it. Raises SbomError for another value."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise SbomError(
            f"SOURCE_DATE_EPOCH is {seconds!r}, expected seconds since 1970; correct or unset it"
        ) from error


def find_faults(text: str) -> Iterator[str]:
    """Yield what makes a document invalid: errors of the schema, repeated identifiers, unknown dependencies."""
    try:
        document = json.loads(text)
    except ValueError as error:
        yield f"not JSON: {error}"
        return
    versions = {one.to_version(): one for one in SchemaVersion if one >= SchemaVersion.V1_2}
    version = document.get("specVersion") if isinstance(document, dict) else None
    if version not in versions:
        yield f"specVersion is {version!r}, expected one of {', '.join(sorted(versions))}"
        return
    breaches = list(JsonStrictValidator(versions[version]).validate_str(text, all_errors=True) or ())
    yield from (f"{one.data.json_path}: {one.data.message[:ERROR_CHARACTERS_MAX]}" for one in breaches)
    if breaches:
        return
    refs = Counter(_identifiers(document))
    yield from (f"the bom-ref {ref!r} occurs {count} times" for ref, count in refs.items() if count > 1)
    for entry in document.get("dependencies", ()):
        unknown = {entry["ref"], *entry.get("dependsOn", ())} - refs.keys()
        yield from (f"the dependencies name {ref!r}, which is not in the document" for ref in sorted(unknown))


def _identifiers(value: Any) -> Iterator[str]:
    """Yield every bom-ref of a document."""
    if isinstance(value, dict):
        if isinstance(value.get("bom-ref"), str):
            yield value["bom-ref"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _identifiers(one)


def validate(paths: Iterable[Path]) -> bool:
    """Print the result of the validation of each document, and return whether all are valid."""
    is_valid = True
    for path in paths:
        try:
            faults = list(find_faults(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise SbomError(f"{path} cannot be read: {error}; name a CycloneDX document in JSON") from error
        is_valid = is_valid and not faults
        print(f"{path}: " + ("valid" if not faults else "not valid"))
        print(*(f"  {fault}\n" for fault in faults), sep="", end="")
    return is_valid


def main(arguments: list[str]) -> int:
    """Run one command, and return its exit code: 0, 1 for a document that is not valid, 2 for an error."""
    description, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    wheel = commands.add_parser("wheel", help="write the document of the wheel")
    wheel.add_argument("file", type=Path, help="the document to write")
    image = commands.add_parser("image", help="write the document of an image from its root file system")
    image.add_argument("name", help="the name of the image, such as gantry-operator")
    image.add_argument("root", type=Path, help="the folder that contains the root file system")
    image.add_argument("file", type=Path, help="the document to write")
    image.add_argument("locks", type=Path, nargs="+", help="the lock files from which the image was built")
    check = commands.add_parser("validate", help="validate documents")
    check.add_argument("files", type=Path, nargs="+", help="CycloneDX documents in JSON")
    options = parser.parse_args(arguments)
    try:
        if options.command == "validate":
            return 0 if validate(options.files) else 1
        if options.command == "wheel":
            text = wheel_document(ROOT, Path(sysconfig.get_path("purelib")))
        else:
            text = image_document(options.name, options.root, options.locks)
    except SbomError as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 2
    options.file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
