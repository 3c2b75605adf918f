"""A tool with three commands and telemetry; README.md goes the whole way with it."""

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
