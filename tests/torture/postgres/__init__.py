"""Campaigns against the PostgreSQL ledger: restarts, broken wires, zombies, other machines, frozen owners."""
