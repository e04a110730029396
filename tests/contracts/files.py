"""The example contracts, as files."""

from __future__ import annotations

from pathlib import Path

from counterfoil import Contract

CONTRACTS = Path(__file__).resolve().parent.parent.parent / "examples" / "contracts"


def contract(name: str) -> Contract:
    return Contract.load(CONTRACTS / f"{name}.toml")
