"""The output formats of commands: tables for people, documents for programs.

    table    tables and sentences for people; may change from release to release
    wide     the same with further columns, where a command has any
    json     one document, or one document per line where a command prints a stream
    yaml     the same document with the same names

JSON and YAML are made from the same values. Their names are stable and are listed in docs/output.md. All commands with
--output use this renderer, so that each of them supports every format: a command passes its document, and a function
that makes its tables and is called only if they are requested.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])


class OutputFormat(StrEnum):
    """The values of the option `--output`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        """Whether the format is for programs."""
        return self in (OutputFormat.JSON, OutputFormat.YAML)

    @property
    def is_wide(self) -> bool:
        """Whether tables have further columns."""
        return self is OutputFormat.WIDE


OUTPUT_FORMATS: Final = tuple(form.value for form in OutputFormat)


def output_option(command: F) -> F:
    """Add the options -o / --output and --json to a command, which receives them as the argument ``form``.

    -o is that of kubectl; -O is the former short option.
    """
    return _add_output_options(command, "-o", "-O", "--output")


def long_output_option(command: F) -> F:
    """Add the same to a command that has another option -o."""
    return _add_output_options(command, "-O", "--output")


def _add_output_options(command: F, *names: str) -> F:
    @functools.wraps(command)
    def with_form(*arguments: Any, output: str | None, is_json: bool, **others: Any) -> Any:
        if is_json and output not in (None, OutputFormat.JSON):
            raise click.UsageError(f"--json and --output {output} are mutually exclusive")
        form = OutputFormat.JSON if is_json else OutputFormat(output or OutputFormat.TABLE)
        return command(*arguments, form=form, **others)

    decorated = click.option("--json", "is_json", is_flag=True, help="Shorthand for --output json.")(with_form)
    decorated = click.option(*names, type=click.Choice(OUTPUT_FORMATS), help="Output format.  [default: table]")(
        decorated
    )
    return decorated  # type: ignore[return-value]  # the same command, called with a format


def show(form: OutputFormat, document: object, screen: Callable[[], Iterable[RenderableType]]) -> None:
    """Print the result of a command. ``screen`` makes the tables and is called only for them."""
    if form.is_document:
        print_document(form, document)
        return
    out = console()
    for part in screen():
        out.print(part)


def show_names(form: OutputFormat, names: Sequence[str], hint: str) -> None:
    """Print names, one per line, or as a document. Without names, a table prints ``hint`` to standard error instead."""
    if form.is_document:
        print_document(form, names)
        return
    for name in names:
        click.echo(name)
    if not names:
        click.echo(hint, err=True)


def print_document(form: OutputFormat, document: object) -> None:
    """Print one document with indentation."""
    if form is OutputFormat.YAML:
        click.echo(yaml_text(document), nl=False)
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def record_text(form: OutputFormat, document: object) -> str:
    """Return one document of a stream: a line of JSON, or a YAML document that begins with `---`."""
    if form is OutputFormat.YAML:
        return f"---\n{yaml_text(document)}".rstrip("\n")
    return msgspec.json.encode(document).decode()


def yaml_text(document: object) -> str:
    """Return a document as YAML: plain scalars, lists and mappings, no tags, no folding, fields in order."""
    import yaml  # slow to import, and most calls print tables

    plain = msgspec.to_builtins(document, str_keys=True)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False)


# -- tables ------------------------------------------------------------------------------------------------------------
# In a pipe, tables are as wide as necessary, up to PIPE_COLUMNS; beyond that, cells are wrapped and never cut.


PIPE_COLUMNS: Final = 240


def console() -> Console:
    """Return a console that writes to standard output.

    It interprets no text as markup: names, filters and errors come from other programs.
    """
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


def table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> Table:
    """Return a table. The columns named in `right` are aligned to the right, for numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, min_width=40)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
