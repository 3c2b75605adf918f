"""A tool of click with three commands and telemetry. README.md beside this file explains each step.

The last call of the file, `telemetry`, adds the command `greet telemetry`, records the names of the
commands that people use, and asks for consent.
"""

import os

import click
from rappor_client.kit.click import telemetry

COLLECTOR = os.environ.get("GREET_COLLECTOR", "https://telemetry.example.org")


@click.group()
def cli() -> None:
    """Greet people."""


@cli.command()
@click.option("--loud", is_flag=True)
@click.argument("name")
def hello(name: str, loud: bool) -> None:
    """Say hello."""
    click.echo(f"Hello, {name.upper() if loud else name}")


@cli.command()
@click.argument("name")
def bye(name: str) -> None:
    """Say goodbye."""
    click.echo(f"Bye, {name}")


@cli.command()
def wave() -> None:
    """Wave."""
    click.echo("o/")


telemetry(
    cli, registry="metrics.toml", collector=COLLECTOR, public_page="https://greet.example.org"
)

if __name__ == "__main__":
    cli()
