"""The command `gantry completion`: completion scripts for shells.

    $ gantry consume or<Tab>     the shell runs `gantry` with _GANTRY_COMPLETE=bash_complete and the line so far;
                                 `gantry` prints the candidates, one a line, and exits

Commands and options are completed without a request, and the module of a command is imported only when the cursor is
after its name. Topics are requested from the name server, consumer groups from the masters that it lists
(`completers`), names in a Kubernetes cluster from `kubectl` (`kube.options`).
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
    """Completion for bash that splits the line itself: bash splits words at colons, as in `-n 127.0.0.1:9876`."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Do nothing: `nosort` works since bash 4.4, and checking the version would start another bash."""

    def get_completion_args(self) -> tuple[list[str], str]:
        text = os.environ.get("COMP_TEXT", "")
        words = split_arg_string(text)
        incomplete = "" if not words or text[-1:].isspace() else words.pop()
        return words[1:], incomplete


add_completion_class(WholeLineBash, "bash")


def completion_script(shell: str) -> str:
    """Return the completion script for a shell."""
    from gantry_cli.main import (  # imported late: main imports this module
        COMPLETION_VARIABLE,
        cli,
    )

    kind: type[ShellComplete] | None = get_completion_class(shell)
    assert kind is not None, "click supports all shells in SHELLS"
    return kind(cli, {}, PROGRAM, COMPLETION_VARIABLE).source().strip() + "\n"


@click.command(
    epilog=examples(
        ('eval "$(gantry completion bash)"', "enable it for bash: add this to ~/.bashrc"),
        ('eval "$(gantry completion zsh)"', "enable it for zsh: add this to ~/.zshrc, after compinit"),
        ("gantry completion fish > ~/.config/fish/completions/gantry.fish", "enable it for fish"),
        ("gantry completion bash > /etc/bash_completion.d/gantry", "enable it for all users, as root"),
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Generate a shell completion script.

    The script completes commands, options, topics and groups. Topics are requested from the name server of the command
    line, else of GANTRY_NAMESRV, else of a `gantry up` here, else 127.0.0.1:9876, and groups from the masters that it
    lists; without answers within half a second, none are offered. The shell must find `gantry` in its PATH.
    """
    click.echo(completion_script(shell), nl=False)
