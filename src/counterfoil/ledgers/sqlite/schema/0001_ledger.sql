-- Tables of the ledger. They may stand in an application's own database, hence the prefix.

CREATE TABLE counterfoil_ledger (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    -- Advances with each registration and retirement of an owner; the file beside the database follows it.
    generation INTEGER NOT NULL,
    -- The generation in which a person last accepted a restored database; 0 if nobody did.
    accepted INTEGER NOT NULL,
    -- Counts what settling transactions wrote, so that each of them waits for a commit of its own.
    settled INTEGER NOT NULL
);

INSERT INTO counterfoil_ledger (id, generation, accepted, settled) VALUES (1, 0, 0, 0);

CREATE TABLE counterfoil_owner (
    id INTEGER PRIMARY KEY,
    epoch TEXT NOT NULL UNIQUE,
    label TEXT NOT NULL,
    since REAL NOT NULL,
    -- 0: may decide; 1: retired; 2: known from its facts only, never registered here.
    retired INTEGER NOT NULL
);

CREATE TABLE counterfoil_namespace (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE counterfoil_run (
    id INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL,
    run TEXT NOT NULL,
    began REAL NOT NULL,
    finished REAL,
    pruned INTEGER NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX counterfoil_run_name ON counterfoil_run (namespace, run);

CREATE TABLE counterfoil_record (
    seq INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    append_id INTEGER NOT NULL,
    format INTEGER NOT NULL,
    at REAL NOT NULL,
    check_sum INTEGER NOT NULL,
    slot TEXT NOT NULL,
    body BLOB NOT NULL
);

-- The first record of a slot wins.
CREATE UNIQUE INDEX counterfoil_record_slot ON counterfoil_record (run, slot);

-- An entry of this index ends in the row's seq, so a run is read as one range, in order, without a sort.
CREATE INDEX counterfoil_record_run ON counterfoil_record (run);

-- What operators look for among many finished runs (uncertain, rejected, failed, released, notes ...).
CREATE INDEX counterfoil_record_rare ON counterfoil_record (kind, run)
    WHERE kind NOT IN (0, 2, 3, 4, 5, 6, 15, 16, 17);
