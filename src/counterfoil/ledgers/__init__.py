"""Ledgers: stores of records whose slots can be filled once."""
