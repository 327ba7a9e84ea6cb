"""`gantry completion`: what a shell has to be told so that the Tab key helps.

    $ gantry consume or<Tab>     the shell runs `gantry` with _GANTRY_COMPLETE=bash_complete and what was typed so far;
                                 `gantry` prints what could stand there, one a line, and ends

Commands and options are known without asking anybody, and a command's module is imported only when the cursor is behind
its name. Topics and groups are asked for at the name server that was typed, if it answers at once: whoever presses Tab
waits for nothing and wants to read no error.
"""

from __future__ import annotations

import os
from typing import Final, final

import click
from click.shell_completion import (
    BashComplete,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from gantry_cli.examples import examples

PROGRAM: Final = "gantry"
SHELLS: Final = ("bash", "zsh", "fish")

_BASH: Final = """\
%(complete_func)s() {
    local response completion type
    response=$(env COMP_TEXT="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete $1 2>/dev/null)
    COMPREPLY=()
    while IFS=',' read -r type completion; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$completion") ;;
        esac
    done <<<"$response"
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@final
class WholeLineBash(BashComplete):
    """Bash's own words end at every colon, so `-n 127.0.0.1:9876` would be three of them. The line is not cut."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Every bash that has `nosort` (4.4) will do, and asking for the version would start another bash."""

    def get_completion_args(self) -> tuple[list[str], str]:
        text = os.environ.get("COMP_TEXT", "")
        words = split_arg_string(text)
        incomplete = "" if not words or text[-1:].isspace() else words.pop()
        return words[1:], incomplete


add_completion_class(WholeLineBash, "bash")


def script(shell: str) -> str:
    """What the shell has to read."""
    from gantry_cli.main import VARIABLE, cli  # the root command is made of the commands, this one among them

    kind: type[ShellComplete] | None = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    return kind(cli, {}, PROGRAM, VARIABLE).source().strip() + "\n"


@click.command(
    epilog=examples(
        ('eval "$(gantry completion bash)"', "in ~/.bashrc, or in a running bash"),
        ('eval "$(gantry completion zsh)"', "in ~/.zshrc, after compinit"),
        ("gantry completion fish > ~/.config/fish/completions/gantry.fish", "once, for fish"),
        ("gantry completion bash > /etc/bash_completion.d/gantry", "for everybody on this machine, as root"),
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete what you type.

    Commands, options, topics and groups. The latter come from the name server that is typed, or from GANTRY_NAMESRV, or
    from a `gantry up` here, if it answers within half a second; if not, nothing is offered. The shell has to find
    `gantry` in its PATH.
    """
    click.echo(script(shell), nl=False)
