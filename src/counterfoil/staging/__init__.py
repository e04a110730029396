"""Staging through the caller's own open transaction. The driver is known by the connection, and never imported here."""

from counterfoil.staging.running import driver_module

__all__ = ["driver_module"]
