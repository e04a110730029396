"""The demo."""

import click


@click.command()
def demo() -> None:
    """Show a worker surviving kill -9."""
