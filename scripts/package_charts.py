"""Package the charts `gantry-operator` and `broker-group` with Helm, for OCI registries and chart repositories.

    scripts/charts --version 0.2.0 packages
    helm push packages/gantry-operator-0.2.0.tgz oci://registry.example/charts

A package of the same tree has the same bytes in every run with the same version of Python, so its digest in a registry
can be compared with a package of one's own: Helm writes the time of the run into each member of the archive, and this
script replaces it by SOURCE_DATE_EPOCH, or by 0. With `--repository-id` or `--owner` it also writes
`artifacthub-repo.yml`, with which Artifact Hub verifies the publisher.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from email.utils import parseaddr
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from artifact_hub import chart_text, repository_violations  # noqa: E402 - scripts in the same folder, not a package
from block_yaml import block_yaml  # noqa: E402
from manifests import CHARTS  # noqa: E402


class PackageError(Exception):
    """A chart cannot be packaged; the message gives the reason."""


def package(helm: Path, chart: Path, folder: Path, version: str = "", time_s: int = 0) -> Path:
    """Package a chart in a folder, and return the path of the package. An empty version is that of the chart.

    The version is written to a copy of the chart, because the annotations contain it, too.
    """
    with tempfile.TemporaryDirectory() as draft:
        source = Path(draft, chart.name)
        shutil.copytree(chart, source)
        if version:
            text = (chart / "Chart.yaml").read_text()
            (source / "Chart.yaml").write_text(re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {version}", text))
            (source / "Chart.yaml").write_text(chart_text(ROOT, source))
        words = [str(helm), "package", str(source), "--destination", draft]
        result = subprocess.run(words, capture_output=True, text=True, check=False)
        if result.returncode:
            raise PackageError(result.stderr.strip() or f"helm package ended with {result.returncode}")
        [packed] = Path(draft).glob("*.tgz")
        target = folder / packed.name
        target.write_bytes(with_time(packed.read_bytes(), time_s))
    return target


def with_time(archive: bytes, time_s: int) -> bytes:
    """Return a compressed archive with one time for all of its members, sorted by name."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as source,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        # Chart.yaml stays the first member, so that readers of metadata need not unpack the whole archive.
        members = sorted(source.getmembers(), key=lambda one: (not one.name.endswith("/Chart.yaml"), one.name))
        for member in members:
            member.mtime = time_s
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member))
    return gzip.compress(packed.getvalue(), mtime=time_s)


def repository_file(repository_id: str, owners: list[tuple[str, str]]) -> str:
    """Return the text of artifacthub-repo.yml. Raises PackageError."""
    document: dict[str, Any] = {"repositoryID": repository_id} if repository_id else {}
    document |= {"owners": [{"name": name, "email": address} for name, address in owners]} if owners else {}
    text = block_yaml(document)
    wrong = repository_violations(text)
    if wrong:
        raise PackageError(f"artifacthub-repo.yml: {wrong[0]}; use --repository-id UUID and --owner 'NAME <MAIL>'")
    return text


def main() -> None:
    """Package both charts as the command line describes it."""
    parser = argparse.ArgumentParser(
        prog="scripts/charts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", default="", help="the version of charts and images (default: that of Chart.yaml)")
    parser.add_argument("--repository-id", default="", metavar="UUID", help="the repository's ID in Artifact Hub")
    parser.add_argument("--owner", action="append", default=[], metavar="'NAME <MAIL>'", help="may be repeated")
    parser.add_argument("folder", nargs="?", default=".gantry/charts", type=Path, help="default: %(default)s")
    options = parser.parse_args()
    time_s = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        helm = Path(os.environ["GANTRY_HELM"])
        written = [package(helm, ROOT / "charts" / name, options.folder, options.version, time_s) for name in CHARTS]
        if options.repository_id or options.owner:
            path = options.folder / "artifacthub-repo.yml"
            path.write_text(repository_file(options.repository_id, [parseaddr(one) for one in options.owner]))
            written.append(path)
    except PackageError as error:
        print(f"charts: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print("\n".join(str(path) for path in written))


if __name__ == "__main__":
    main()
