"""What the inside asks of the outside, and what bodies may ask of a host: `typing.Protocol` classes only."""

from counterfoil.ports.durability import AsyncDurability, Durability

__all__ = ["AsyncDurability", "Durability"]
