"""`chunkvisor completion`: what a shell needs to complete commands, options, files and keys.

It never writes to a shell's start-up files: where the line belongs is for the person to decide.
"""

import sys

import click

_HOW = {
    "bash": 'eval "$(chunkvisor completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(chunkvisor completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "chunkvisor completion fish | source   # in ~/.config/fish/config.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_HOW)))
def command(shell: str) -> None:
    r"""Print the lines that make SHELL complete commands. Options, config files and keys are completed, too.

    \b
    Example: chunkvisor completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root()
    click.echo(kind(root.command, {}, "chunkvisor", "_CHUNKVISOR_COMPLETE").source())
    if sys.stdout.isatty():
        click.echo(f"to have them in every new shell: {_HOW[shell]}", err=True)
