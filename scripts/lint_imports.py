"""Run the import contracts of pyproject.toml over the packages that exist so far.

import-linter refuses to start when a root package or a source module is missing, and the contracts name
packages that arrive later. So this writes the same contracts without the absent names to a file in the
linter's cache folder, says which names it left out, and runs the linter on that. A package that exists is
never left out, and a package that exists without being named in the contracts is an error: otherwise a new
folder would be outside the law until somebody noticed.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("broker/src", "operator/src", "pipelines/src")
LIST_KEYS = ("source_modules", "forbidden_modules", "containers")


def module_exists(root: Path, dotted_name: str) -> bool:
    """Whether the module is in one of our source folders, as a package with modules or as a file."""
    relative = dotted_name.replace(".", "/")
    for folder in SOURCE_FOLDERS:
        package = root / folder / relative
        if package.with_suffix(".py").is_file() or (package / "__init__.py").is_file():
            return True
    return False


def packages_present(root: Path) -> set[str]:
    """Every import package found in the source folders."""
    return {
        package.name
        for folder in SOURCE_FOLDERS
        for package in (root / folder).glob("*")
        if (package / "__init__.py").is_file()
    }


def reduce_contracts(root: Path, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The contracts without names that do not exist, and those names."""
    ours = set(config["root_packages"])
    unknown = packages_present(root) - ours
    if unknown:
        raise SystemExit(f"lint-imports: name these packages in the contracts of pyproject.toml: {sorted(unknown)}")

    def keep(name: str) -> bool:
        return name.split(".")[0] not in ours or module_exists(root, name)

    contracts = []
    for contract in config["contracts"]:
        kept = {
            key: [name for name in value if keep(name)] if key in LIST_KEYS else value
            for key, value in contract.items()
        }
        if all(kept[key] for key in LIST_KEYS if key in kept):
            contracts.append(kept)
    absent = sorted(ours - packages_present(root))
    return {**config, "root_packages": sorted(ours - set(absent)), "contracts": contracts}, absent


def to_toml(config: dict[str, Any]) -> str:
    """The reduced contracts as TOML; strings, lists and booleans are written the way JSON writes them."""
    lines = ["[tool.importlinter]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in config.items() if key != "contracts"]
    for contract in config["contracts"]:
        lines += ["", "[[tool.importlinter.contracts]]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in contract.items()]
    return "\n".join(lines) + "\n"


def main(root: Path = ROOT) -> int:
    """Lint; the result is the exit code."""
    from importlinter.cli import lint_imports

    config = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    reduced, absent = reduce_contracts(root, config)
    cache = root / ".import_linter_cache"
    cache.mkdir(exist_ok=True)
    path = cache / "contracts.toml"
    path.write_text(to_toml(reduced))
    sys.path[:0] = [str(root / folder) for folder in SOURCE_FOLDERS]
    if absent:
        print("lint-imports: not there yet:", ", ".join(absent))
    return lint_imports(config_filename=str(path), cache_dir=str(cache), no_logo=True)


if __name__ == "__main__":
    sys.exit(main())
