"""Write docs/settings.md, docs/commands.md, docs/output.md and the fields in groups.md and pipelines.md from the code.

The package graph in ARCHITECTURE.md is written, too (`package_graph`).

The settings are read from the source of every settings class: a dataclass whose name ends in `Settings` or
`Limits` and which has defaults; one without any is a value handed around inside, not something that a user sets.
Each field is followed by a docstring with its reason, and a field without one is an error here, since a reference that
only repeats a name helps nobody. The commands are read from the command line itself, the fields of a manifest from its
structs, those of what commands say to programs from their types. `make format` runs this; the docs test compares.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import package_graph

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("broker/src", "operator/src", "pipelines/src")
SPEAKING_NAMES = {"TlsSettings.mode", "TlsSettings.certificate_file", "TlsSettings.key_file"}
"""The only settings that may do without a docstring, because the name and the class say it all."""
NOTE = "<!-- Written by scripts/reference.py (`make format`) from the code; edit the docstrings there. -->\n"
FIELDS_BEGIN = "<!-- fields: written by scripts/reference.py (`make format`); edit the texts in the code -->"
FIELDS_END = "<!-- end: fields -->"


@dataclass(frozen=True)
class Setting:
    """One field of a settings class."""

    name: str
    default: str
    reason: str


@dataclass(frozen=True)
class SettingsClass:
    """One settings class as its source shows it."""

    module: str
    name: str
    purpose: str
    settings: tuple[Setting, ...]

    @property
    def unexplained(self) -> list[str]:
        """Fields that nobody gave a docstring."""
        mute = (setting.name for setting in self.settings if not setting.reason)
        return [f"{self.module}.{self.name}.{name}" for name in mute if f"{self.name}.{name}" not in SPEAKING_NAMES]


def is_settings_class(node: ast.ClassDef) -> bool:
    """A dataclass or struct that is called Settings or Limits."""
    return node.name.endswith(("Settings", "Limits")) and not node.name.startswith("_")


def text_of(node: ast.stmt | None) -> str:
    """The text of a statement that is only a string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def default_of(field: ast.AnnAssign, constants: dict[str, str]) -> str:
    """The default as written, or the value of the constant it names; `required` when there is none."""
    value = field.value
    if value is None:
        return "required"
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        factory = {keyword.arg: keyword.value for keyword in value.keywords}.get("default_factory")
        return "computed" if factory is None else f"{ast.unparse(factory)}()"
    return constants.get(ast.unparse(value), ast.unparse(value))


def settings_of(path: Path, module: str) -> Iterator[SettingsClass]:
    """The settings classes of one module."""
    tree = ast.parse(path.read_text())
    constants = {
        ast.unparse(target): ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not is_settings_class(node):
            continue
        following = [*node.body[1:], None]
        found = tuple(
            Setting(field.target.id, default_of(field, constants), text_of(after))
            for field, after in zip(node.body, following, strict=True)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if "ClassVar" not in ast.unparse(field.annotation) and not field.target.id.startswith("_")
        )
        if any(setting.default != "required" for setting in found):
            yield SettingsClass(module, node.name, " ".join((ast.get_docstring(node) or "").split()), found)


def all_settings(root: Path) -> list[SettingsClass]:
    """Every settings class of every package, by module name."""
    found: list[SettingsClass] = []
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).glob("**/*.py")):
            module = ".".join(path.relative_to(root / folder).with_suffix("").parts)
            if ".testing" not in module:
                found += settings_of(path, module)
    return sorted(found, key=lambda one: (one.module, one.name))


def broker_conf_keys(root: Path) -> dict[str, str]:
    """What works in a `broker.conf`: RocketMQ's key to our setting, read from the table of the broker's settings."""
    tree = ast.parse((root / "broker/src/gantry_broker/setting_keys.py").read_text())
    for node in tree.body:
        is_table = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_KEYS"
        if is_table and isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            rows = zip(node.value.keys, node.value.values, strict=True)
            return {
                ast.literal_eval(key): ast.literal_eval(value.elts[0])
                for key, value in rows
                if key is not None and isinstance(value, ast.Tuple)
            }
    raise SystemExit("reference: gantry_broker.setting_keys has no table _KEYS any more")


def settings_page(classes: list[SettingsClass], keys: dict[str, str]) -> str:
    """docs/settings.md."""
    lines = [
        NOTE,
        "# Settings",
        "",
        "Every setting, by the part that it belongs to. A `broker.conf` uses the names that RocketMQ users know:",
        "",
        "| in `broker.conf` | setting |",
        "|---|---|",
        *(f"| `{key}` | `{setting}` |" for key, setting in keys.items()),
    ]
    for one in classes:
        lines += ["", f"## `{one.name}` ({one.module})", "", one.purpose, ""]
        lines += ["| setting | default | what it is, and why |", "|---|---|---|"]
        for setting in one.settings:
            cells = (f"`{setting.name}`", f"`{setting.default}`", setting.reason)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def command_line() -> Any:
    """The root command of `gantry`, a click group."""
    import click

    from gantry_cli import main as module

    groups = [value for value in vars(module).values() if isinstance(value, click.Group)]
    if len(groups) != 1:
        raise SystemExit(f"reference: gantry_cli.main should hold one click group, it holds {len(groups)}")
    return groups[0]


def context_of(command: Any, name: str, parent: Any) -> Any:
    """The context in which the command prints its help when it is typed, as wide on every machine."""
    import click

    width = {"terminal_width": 100, "max_content_width": 100}
    return click.Context(command, parent=parent, info_name=name, **{**command.context_settings, **width})


def walk_commands(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """A command and all below it: the words that call each, the command, its context."""
    if command.hidden:
        return
    context = context_of(command, name, parent)
    yield context.command_path, command, context
    if hasattr(command, "list_commands"):
        for child_name in sorted(command.list_commands(context)):
            yield from walk_commands(command.get_command(context, child_name), child_name, context)


def commands_page(root_command: Any) -> str:
    """docs/commands.md: what `--help` says, for every command."""
    import click

    lines = [
        NOTE,
        "# Commands",
        "",
        "What `gantry COMMAND --help` prints, for every command, and `kubectl gantry` after it.",
    ]
    from gantry_cli.kube.plugin import cli as plugin

    every = [*walk_commands(root_command, "gantry"), *walk_commands(plugin, "kubectl gantry")]
    for name, command, context in every:
        with context:
            text = "\n".join(line.rstrip() for line in click.unstyle(command.get_help(context)).splitlines())
        lines += ["", f"## `{name}`", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def field_tables(**specs: Any) -> str:
    """Every field of manifests, part by part; a part that several have is written once."""
    from gantry_spec.manifest.shapes import Field, fields_of, is_part, item_of, purpose_of

    def part_of(field: Field) -> Any:
        kind = item_of(field.kind)[0] if getattr(field.kind, "__origin__", None) is list else field.kind
        return kind if is_part(kind) else None

    def default_text(field: Field) -> str:
        if field.is_required:
            return "required"
        if isinstance(field.default, list):
            return ", ".join(f"`{one}`" for one in field.default)
        is_nothing = field.default is None or field.default in ("", {}) or is_part(field.kind)
        return "" if is_nothing else f"`{str(field.default).lower() if field.kind is bool else field.default}`"

    seen: set[Any] = set()

    def table(part: Any, path: str, title: str = "") -> Iterator[str]:
        seen.add(part)
        yield from (
            "",
            f"### {title or f'`{path}`'}",
            "",
            purpose_of(part),
            "",
            "| field | default | what it is |",
            "|---|---|---|",
        )
        fields = fields_of(part)
        for field in fields:
            yield f"| `{field.name}` | {default_text(field)} | {field.description} |"
        for field in fields:
            if (inner := part_of(field)) is not None and inner not in seen:
                yield from table(inner, f"{path}.{field.name}" + ("" if is_part(field.kind) else "[]"))

    lines: list[str] = []
    for name, spec in specs.items():
        lines += table(spec, "spec", "" if len(specs) == 1 else f"`spec` of a `{name}`")
    return "\n".join(lines).strip()


def field_texts(kind: type) -> dict[str, str]:
    """The docstrings under the fields of a class, those that it inherits included."""
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if not one.__module__.startswith(("builtins", "msgspec")):
            texts |= own_field_texts(one)
    return texts


def own_field_texts(kind: type) -> dict[str, str]:
    """The docstrings under the fields that a class itself defines."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef), "only classes have fields"
    return {
        field.target.id: text_of(after)
        for field, after in zip(node.body, [*node.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def document_rows(kind: Any, path: str = "") -> Iterator[str]:
    """A row for each field of a document, and for those of what is in it."""
    from gantry_status.broker_state import UNKNOWN, StatePart, optional_numbers

    of_class = getattr(kind, "cls", None)
    if of_class is not None and hasattr(kind, "fields"):
        texts = field_texts(of_class)
        minus_one = optional_numbers(of_class) if issubclass(of_class, StatePart) else ()
        for name, field in ((name, field) for name in texts for field in kind.fields if field.name == name):
            shown, text = f"{path}{getattr(field, 'encode_name', name)}", texts[name].replace("|", chr(92) + "|")
            is_minus_one = name in minus_one or field.default == UNKNOWN
            what = "number, -1 if not known" if is_minus_one else kind_text(field.type)
            yield f"| `{shown}` | {what} | {text} |"
            yield from document_rows(field.type, f"{shown}.")
    for inner in getattr(kind, "types", ()):
        yield from document_rows(inner, path)
    if hasattr(kind, "item_type"):
        yield from document_rows(kind.item_type, f"{path.rstrip('.')}[].")


def kind_text(kind: Any) -> str:
    """What a program gets to see: text, number, yes or no, list, mapping, or null."""
    name = type(kind).__name__.removesuffix("Type")
    if name == "Union":
        return ", ".join(kind_text(one) for one in kind.types if type(one).__name__ != "UnsetType") + (
            ", or left out" if any("Unset" in repr(one) for one in kind.types) else ""
        )
    said = {"Str": "text", "Int": "number", "Float": "number", "Bool": "true or false", "None": "null", "Enum": "text",
            "Literal": "text", "Dict": "mapping"}  # fmt: skip
    return said.get(name, "list" if hasattr(kind, "item_type") or name == "Tuple" else "object")


def output_page(text: str) -> str:
    """docs/output.md: what was written by hand, and every document of every command behind it."""
    import msgspec

    from gantry_cli.document_types import DOCUMENTS

    commands: dict[Any, list[str]] = {}
    for command, kind in DOCUMENTS.items():
        commands.setdefault(kind, []).append(f"`{command}`")
    lines = [text.partition(FIELDS_BEGIN)[0] + FIELDS_BEGIN]
    for kind, names in commands.items():
        lines += ["", f"## {', '.join(names)}", ""]
        if not isinstance(kind, type):
            lines.append("A list of names.")
            continue
        purpose = (inspect.getdoc(kind) or "").split("\n\n")[0]
        lines += [" ".join(purpose.split()), "", "| field | | |", "|---|---|---|"]
        lines += document_rows(msgspec.inspect.type_info(kind))
    return "\n".join(lines) + "\n"


def groups_page(text: str) -> str:
    """docs/groups.md: what was written by hand, with the fields as they are now."""
    from gantry_spec.manifest.group import Spec

    return page_with_fields(text, "docs/groups.md", field_tables(BrokerGroup=Spec))


def pipelines_page(text: str) -> str:
    """docs/pipelines.md, in the same way."""
    from gantry_spec.pipelines import PIPELINE_KINDS

    return page_with_fields(
        text, "docs/pipelines.md", field_tables(**{kind.name: kind.spec for kind in PIPELINE_KINDS})
    )


def page_with_fields(text: str, name: str, tables: str) -> str:
    """What was written by hand, with these tables between the two marks."""
    head, _, rest = text.partition(FIELDS_BEGIN)
    _, end, tail = rest.partition(FIELDS_END)
    if not end:
        raise SystemExit(f"reference: {name} has no line {FIELDS_BEGIN} and after it {FIELDS_END}")
    return f"{head}{FIELDS_BEGIN}\n{tables}\n{FIELDS_END}{tail}"


def pages(root: Path) -> dict[Path, str]:
    """Each page of the reference and what it should say. Raises SystemExit when a setting lacks its reason."""
    classes = all_settings(root)
    unexplained = [name for one in classes for name in one.unexplained]
    if unexplained:
        raise SystemExit("reference: say what these settings are, in a docstring: " + ", ".join(unexplained))
    docs = root / "docs"
    return {
        docs / "settings.md": settings_page(classes, broker_conf_keys(root)),
        docs / "commands.md": commands_page(command_line()),
        docs / "output.md": output_page((docs / "output.md").read_text()),
        docs / "groups.md": groups_page((docs / "groups.md").read_text()),
        docs / "pipelines.md": pipelines_page((docs / "pipelines.md").read_text()),
        root / "ARCHITECTURE.md": package_graph.page(root),
    }


def main() -> int:
    """Write the pages."""
    for path, text in pages(ROOT).items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
