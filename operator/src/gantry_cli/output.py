"""In which form a command shows what it found: a screen for people, or a document for programs.

    table    for people: tables and sentences, in the words and units of people. May change from release to release
    json     for programs: one document, or one a line where a command shows one thing after another
    yaml     the same document, the same names, for people who read it and programs that do not read JSON

Both documents are made of the same values, so what one says the other says, too. The names in them are stable and are
listed in docs/output.md. One renderer for all commands, so that none forgets a form: a command hands over its document
and its screen, and this module decides which is made at all.
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


class Form(StrEnum):
    """What `--output` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        """Whether a program reads it."""
        return self is not Form.TABLE


FORMS: Final = tuple(form.value for form in Form)


def output_option(command: F) -> F:
    """-O / --output, and --json, which is short for one of its values. The command gets a ``form``."""

    @functools.wraps(command)
    def with_form(*arguments: Any, output: str | None, is_json: bool, **others: Any) -> Any:
        if is_json and output not in (None, Form.JSON):
            raise click.UsageError(f"--json and --output {output} contradict each other: give one of them")
        form = Form.JSON if is_json else Form(output or Form.TABLE)
        return command(*arguments, form=form, **others)

    decorated = click.option("--json", "is_json", is_flag=True, help="Short for --output json.")(with_form)
    decorated = click.option(
        "-O", "--output", type=click.Choice(FORMS), help="For people (table) or programs.  [default: table]"
    )(decorated)
    return decorated  # type: ignore[return-value]  # the same command, called with a form


def show(form: Form, document: object, screen: Callable[[], Iterable[RenderableType]]) -> None:
    """The whole answer of a command. ``screen`` is asked only for people."""
    if form.is_document:
        print_document(form, document)
        return
    out = console()
    for part in screen():
        out.print(part)


def show_names(form: Form, names: Sequence[str], hint: str) -> None:
    """Names, one a line. ``hint`` says on standard error why there are none."""
    if form.is_document:
        print_document(form, names)
        return
    for name in names:
        click.echo(name)
    if not names:
        click.echo(hint, err=True)


def print_document(form: Form, document: object) -> None:
    """One document, readable for people, too."""
    if form is Form.YAML:
        click.echo(yaml_text(document), nl=False)
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def record_text(form: Form, document: object) -> str:
    """One of many documents: a line of JSON, or a YAML document that begins with its own mark."""
    if form is Form.YAML:
        return f"---\n{yaml_text(document)}".rstrip("\n")
    return msgspec.json.encode(document).decode()


def yaml_text(document: object) -> str:
    """YAML of what JSON would say: plain scalars, lists and mappings, no tags, nothing cut, order kept."""
    import yaml  # most commands are asked for no document

    plain = msgspec.to_builtins(document, str_keys=True)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False)


# -- tables ------------------------------------------------------------------------------------------------------------
# Tables and lines on the terminal. Into a pipe they are as wide as they need to be, so that nothing is cut.


PIPE_COLUMNS: Final = 240


def console() -> Console:
    """Standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS, soft_wrap=False)


def table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> Table:
    """A table; columns named in `right` are aligned for numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, min_width=40)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
