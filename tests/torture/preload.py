"""What the server process imports before it forks workers, so that a new one costs milliseconds."""

import asyncio
import concurrent.futures
import sqlite3

import apsw
import psycopg
import psycopg_pool

import counterfoil
import counterfoil.ledgers.memory
import counterfoil.ledgers.sqlite
import counterfoil.protocol.checker
import counterfoil.runtime.aio
import tests.torture.clocks
import tests.torture.fork
import tests.torture.full
import tests.torture.kills
import tests.torture.outbox
import tests.torture.points
import tests.torture.postgres.frozen
import tests.torture.postgres.machines
import tests.torture.postgres.restarts
import tests.torture.postgres.wires
import tests.torture.postgres.zombies
import tests.torture.programs
import tests.torture.race
import tests.torture.recipient
import tests.torture.stop
import tests.torture.sync

__all__ = ["apsw", "asyncio", "concurrent", "counterfoil", "psycopg", "psycopg_pool", "sqlite3", "tests"]
