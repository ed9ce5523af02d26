"""`chunkvisor schema`: the JSON Schema of the config."""

import json

import click


@click.command("schema")
def command() -> None:
    r"""Print the JSON Schema of the config. With it, editors complete keys and mark what is wrong.

    \b
    Example: chunkvisor schema > chunkvisor.schema.json
    and at the top of the config: # yaml-language-server: $schema=chunkvisor.schema.json
    """
    from chunkvisor.config.schema import config_schema

    click.echo(json.dumps(config_schema(), indent=2))
