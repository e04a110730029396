"""What the inside asks of the outside: `typing.Protocol` classes only."""
