"""Write the generated pages from the code: docs/settings.md, commands.md and logs.md, and parts of four other pages.

The parts are the fields in docs/output.md, groups.md and pipelines.md, and the package graph in ARCHITECTURE.md. The
modules `log_catalogue` and `package_graph` make the log page and the graph.

Settings are read from the source of the settings classes: dataclasses whose names end in `Settings` or `Limits` and
which have defaults. A class without defaults is an internal value, not a setting of users. Each field must be followed
by a docstring with its meaning and reason. Commands are read from the command line, the fields of manifests from their
structs, and the fields of output documents from their types. `make format` runs this script; a test checks that the
pages are up to date.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

import log_catalogue
import package_graph

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("broker/src", "operator/src", "pipelines/src")
SELF_EXPLANATORY = {"TlsSettings.mode", "TlsSettings.certificate_file", "TlsSettings.key_file"}
"""The only settings without a docstring, because their names and their class are sufficient."""
NOTE = "<!-- Written by scripts/reference.py (`make format`) from the code; edit the docstrings there. -->\n"
"""The first line of each generated page."""
FIELDS_BEGIN = "<!-- fields: written by scripts/reference.py (`make format`); edit the texts in the code -->"
"""The mark before the generated tables of a page."""
FIELDS_END = "<!-- end: fields -->"


@dataclass(frozen=True)
class Setting:
    """One field of a settings class."""

    name: str
    default: str
    """The default as it is written in the code; `required` if there is none."""

    reason: str
    """The docstring of the field; empty if it has none."""


@dataclass(frozen=True)
class SettingsClass:
    """One settings class, read from its source."""

    module: str
    name: str
    purpose: str
    """The docstring of the class in one line."""

    settings: tuple[Setting, ...]

    @property
    def unexplained(self) -> list[str]:
        """Return the fields without a docstring."""
        without_reason = (setting.name for setting in self.settings if not setting.reason)
        required = (name for name in without_reason if f"{self.name}.{name}" not in SELF_EXPLANATORY)
        return [f"{self.module}.{self.name}.{name}" for name in required]


def is_settings_class(node: ast.ClassDef) -> bool:
    """Return whether a class is a public class of settings or limits, by its name."""
    return node.name.endswith(("Settings", "Limits")) and not node.name.startswith("_")


def text_of(node: ast.stmt | None) -> str:
    """Return the text of a statement that is only a string, such as a docstring; otherwise an empty string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


class Constants:
    """The constants of all modules by name, in capital letters, also those that a module imports from another one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[str, dict[str, ast.expr | tuple[str, str]]] = {}

    def inline(self, module: str, expression: ast.expr) -> ast.expr:
        """Return an expression of a module with the values of constants in the place of their names."""
        table = self

        class Inliner(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                found = table._value(module, node.id)
                return node if found is None else found

        inlined = Inliner().visit(copy.deepcopy(expression))
        assert isinstance(inlined, ast.expr), "an expression becomes an expression"
        return inlined

    def _value(self, module: str, name: str) -> ast.expr | None:
        if module not in self._modules:
            self._modules[module] = self._read(module)
        found = self._modules[module].get(name)
        if found is None:
            return None
        return self._value(*found) if isinstance(found, tuple) else self.inline(module, found)

    def _read(self, module: str) -> dict[str, ast.expr | tuple[str, str]]:
        """Return the values of a module's own constants, and module and name of the imported ones."""
        found: dict[str, ast.expr | tuple[str, str]] = {}
        places = (self._root / folder / module.replace(".", "/") for folder in SOURCE_FOLDERS)
        files = (path for place in places for path in (place.with_suffix(".py"), place / "__init__.py"))
        path = next((path for path in files if path.is_file()), None)
        for node in [] if path is None else ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {one.asname or one.name: (node.module, one.name) for one in node.names}
            elif isinstance(node, ast.Assign):
                found |= {ast.unparse(target): node.value for target in node.targets}
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                found[ast.unparse(node.target)] = node.value
        return {name: value for name, value in found.items() if name.isupper()}


def default_of(field: ast.AnnAssign, inline: Callable[[ast.expr], ast.expr]) -> str:
    """Return the default as written, with the values of constants; `required` if there is none."""
    value = field.value
    if value is None:
        return "required"
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" in given:
            return ast.unparse(inline(given["default"]))
        factory = given.get("default_factory")
        if factory is None:
            return "computed"
        return ast.unparse(inline(factory.body)) if isinstance(factory, ast.Lambda) else f"{ast.unparse(factory)}()"
    return ast.unparse(inline(value))


def settings_of(path: Path, module: str, constants: Constants) -> Iterator[SettingsClass]:
    """Yield the settings classes of one module."""
    inline = partial(constants.inline, module)
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ClassDef) or not is_settings_class(node):
            continue
        following = [*node.body[1:], None]
        found = tuple(
            Setting(field.target.id, default_of(field, inline), text_of(after))
            for field, after in zip(node.body, following, strict=True)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if "ClassVar" not in ast.unparse(field.annotation) and not field.target.id.startswith("_")
        )
        if any(setting.default != "required" for setting in found):
            yield SettingsClass(module, node.name, " ".join((ast.get_docstring(node) or "").split()), found)


def all_settings(root: Path) -> list[SettingsClass]:
    """Return all settings classes of all packages, sorted by module name."""
    found: list[SettingsClass] = []
    constants = Constants(root)
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).glob("**/*.py")):
            module = ".".join(path.relative_to(root / folder).with_suffix("").parts)
            if ".testing" not in module:
                found += settings_of(path, module, constants)
    return sorted(found, key=lambda one: (one.module, one.name))


def broker_conf_keys(root: Path) -> dict[str, str]:
    """Return the keys of `broker.conf` and their settings, from the table in gantry_broker.setting_keys."""
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
    raise SystemExit("reference: gantry_broker.setting_keys has no table _KEYS")


def settings_page(classes: list[SettingsClass], keys: dict[str, str]) -> str:
    """Return the text of docs/settings.md."""
    lines = [
        NOTE,
        "# Settings",
        "",
        "All settings, by component. A `broker.conf` uses the key names of RocketMQ:",
        "",
        "| in `broker.conf` | setting |",
        "|---|---|",
        *(f"| `{key}` | `{setting}` |" for key, setting in keys.items()),
    ]
    for one in classes:
        lines += ["", f"## `{one.name}` ({one.module})", "", one.purpose, ""]
        lines += ["| setting | default | description |", "|---|---|---|"]
        for setting in one.settings:
            cells = (f"`{setting.name}`", f"`{setting.default}`", setting.reason)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def command_line() -> Any:
    """Return the root command of `gantry`, a click group."""
    import click

    from gantry_cli import main as module

    groups = [value for value in vars(module).values() if isinstance(value, click.Group)]
    if len(groups) != 1:
        raise SystemExit(f"reference: gantry_cli.main should hold one click group, it holds {len(groups)}")
    return groups[0]


def context_of(command: Any, name: str, parent: Any) -> Any:
    """Return a context that prints the help of a command with the same width on every machine."""
    import click

    width = {"terminal_width": 100, "max_content_width": 100}
    return click.Context(command, parent=parent, info_name=name, **{**command.context_settings, **width})


def walk_commands(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """Yield a command and its subcommands: the full name, the command and its context."""
    if command.hidden:
        return
    context = context_of(command, name, parent)
    yield context.command_path, command, context
    if hasattr(command, "list_commands"):
        for child_name in sorted(command.list_commands(context)):
            yield from walk_commands(command.get_command(context, child_name), child_name, context)


def commands_page(root_command: Any) -> str:
    """Return the text of docs/commands.md: the output of `--help` of every command."""
    import click

    lines = [
        NOTE,
        "# Commands",
        "",
        "The output of `gantry COMMAND --help` for every command, followed by the commands of `kubectl gantry`.",
    ]
    from gantry_cli.kube.plugin import cli as plugin

    every = [*walk_commands(root_command, "gantry"), *walk_commands(plugin, "kubectl gantry")]
    for name, command, context in every:
        with context:
            text = "\n".join(line.rstrip() for line in click.unstyle(command.get_help(context)).splitlines())
        lines += ["", f"## `{name}`", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def field_tables(**specs: Any) -> str:
    """Return tables of all fields of manifests by section; a section that several manifests share appears once."""
    from gantry_spec.manifest.struct_fields import Field, description_of, fields_of, is_part, item_of

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
            description_of(part),
            "",
            "| field | default | description |",
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
    """Return the docstrings of the fields of a class, including inherited fields."""
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if not one.__module__.startswith(("builtins", "msgspec")):
            texts |= own_field_texts(one)
    return texts


def own_field_texts(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields that a class itself defines."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef), "expected a class"
    return {
        field.target.id: text_of(after)
        for field, after in zip(node.body, [*node.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def document_rows(kind: Any, path: str = "") -> Iterator[str]:
    """Yield a row for each field of a document and of its nested documents."""
    from gantry_status.broker_state import UNKNOWN, StatePart, optional_numbers

    of_class = getattr(kind, "cls", None)
    if of_class is not None and hasattr(kind, "fields"):
        texts = field_texts(of_class)
        minus_one = optional_numbers(of_class) if issubclass(of_class, StatePart) else ()
        for name, field in ((name, field) for name in texts for field in kind.fields if field.name == name):
            shown, text = f"{path}{getattr(field, 'encode_name', name)}", texts[name].replace("|", chr(92) + "|")
            is_minus_one = name in minus_one or field.default == UNKNOWN
            what = "number, -1 if unknown" if is_minus_one else kind_text(field.type)
            yield f"| `{shown}` | {what} | {text} |"
            yield from document_rows(field.type, f"{shown}.")
    for inner in getattr(kind, "types", ()):
        yield from document_rows(inner, path)
    if hasattr(kind, "item_type"):
        yield from document_rows(kind.item_type, f"{path.rstrip('.')}[].")


def kind_text(kind: Any) -> str:
    """Return the JSON type of a field in words: text, number, true or false, list, mapping, object, or null."""
    name = type(kind).__name__.removesuffix("Type")
    if name == "Union":
        return ", ".join(kind_text(one) for one in kind.types if type(one).__name__ != "UnsetType") + (
            ", or left out" if any("Unset" in repr(one) for one in kind.types) else ""
        )
    words = {"Str": "text", "Int": "number", "Float": "number", "Bool": "true or false", "None": "null", "Enum": "text",
            "Literal": "text", "Dict": "mapping"}  # fmt: skip
    return words.get(name, "list" if hasattr(kind, "item_type") or name == "Tuple" else "object")


def output_page(text: str) -> str:
    """Return docs/output.md: the part that is written by hand, then the documents of all commands."""
    import msgspec

    from gantry_cli.document_types import DOCUMENTS

    commands: dict[Any, list[str]] = {}
    for command, kind in DOCUMENTS.items():
        commands.setdefault(kind, []).append(f"`{command}`")
    lines = [text.partition(FIELDS_BEGIN)[0] + FIELDS_BEGIN]
    for kind, names in commands.items():
        lines += ["", f"## {', '.join(names)}", ""]
        if get_origin(kind) is list:
            (kind,) = get_args(kind)
            lines.append("A list of names." if kind is str else "A list; each entry:")
            if kind is str:
                continue
            lines.append("")
        purpose = (inspect.getdoc(kind) or "").split("\n\n")[0]
        lines += [" ".join(purpose.split()), "", "| field | | |", "|---|---|---|"]
        lines += document_rows(msgspec.inspect.type_info(kind))
    return "\n".join(lines) + "\n"


def groups_page(text: str) -> str:
    """Return docs/groups.md with the current fields."""
    from gantry_spec.manifest.group import Spec

    return page_with_fields(text, "docs/groups.md", field_tables(BrokerGroup=Spec))


def pipelines_page(text: str) -> str:
    """Return docs/pipelines.md with the current fields."""
    from gantry_spec.pipelines import PIPELINE_KINDS

    return page_with_fields(
        text, "docs/pipelines.md", field_tables(**{kind.name: kind.spec for kind in PIPELINE_KINDS})
    )


def page_with_fields(text: str, name: str, tables: str) -> str:
    """Return a page with the tables between its two marks."""
    head, _, rest = text.partition(FIELDS_BEGIN)
    _, end, tail = rest.partition(FIELDS_END)
    if not end:
        raise SystemExit(f"reference: {name} has no line {FIELDS_BEGIN} and after it {FIELDS_END}")
    return f"{head}{FIELDS_BEGIN}\n{tables}\n{FIELDS_END}{tail}"


def pages(root: Path) -> dict[Path, str]:
    """Return the path and the text of each page. Raises SystemExit if a setting has no docstring."""
    classes = all_settings(root)
    unexplained = [name for one in classes for name in one.unexplained]
    if unexplained:
        raise SystemExit("reference: add docstrings to these settings: " + ", ".join(unexplained))
    docs = root / "docs"
    return {
        docs / "settings.md": settings_page(classes, broker_conf_keys(root)),
        docs / "commands.md": commands_page(command_line()),
        docs / "output.md": output_page((docs / "output.md").read_text()),
        docs / "groups.md": groups_page((docs / "groups.md").read_text()),
        docs / "pipelines.md": pipelines_page((docs / "pipelines.md").read_text()),
        docs / "logs.md": log_catalogue.page(root),
        root / "ARCHITECTURE.md": package_graph.page(root),
    }


def main() -> int:
    """Write all pages of the reference."""
    for path, text in pages(ROOT).items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
