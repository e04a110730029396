-- Tables of the outbox. Everything but `ready`, the heads of lanes and the two registers is only ever appended.

CREATE TABLE counterfoil_intent (
    -- A handle, not an order: what commits later may have a smaller one. Rows are never deleted, so none is used twice, and
    -- staging need not write to a table of numbers for it.
    seq INTEGER PRIMARY KEY,
    effect_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    recipient TEXT NOT NULL,
    operation TEXT NOT NULL,
    format INTEGER NOT NULL,
    -- NULL once it was pruned: identity and fingerprint stay.
    body BLOB,
    fingerprint TEXT NOT NULL,
    policy TEXT,
    lane TEXT,
    place INTEGER,
    on_stuck TEXT NOT NULL,
    not_before REAL,
    expires_at REAL,
    -- The ledger's generation when it was staged: older than an accepted restore, it may have been sent already.
    generation INTEGER NOT NULL,
    staged_at REAL NOT NULL,
    trace TEXT
);

CREATE UNIQUE INDEX counterfoil_intent_effect ON counterfoil_intent (effect_id);

-- What waits for somebody. `due` is NULL for what is not first in its lane, and for what a person must look at.
CREATE TABLE counterfoil_ready (
    intent INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    recipient TEXT NOT NULL,
    operation TEXT NOT NULL,
    format INTEGER NOT NULL,
    due REAL,
    not_before REAL NOT NULL,
    lane TEXT,
    place INTEGER,
    state TEXT NOT NULL,
    reason TEXT,
    since REAL NOT NULL,
    standing BLOB
);

CREATE INDEX counterfoil_ready_due ON counterfoil_ready (kind, recipient, due) WHERE due IS NOT NULL;

CREATE INDEX counterfoil_ready_resting ON counterfoil_ready (state) WHERE due IS NULL;

CREATE INDEX counterfoil_ready_lane ON counterfoil_ready (lane, place) WHERE lane IS NOT NULL;

-- Claims.
CREATE TABLE counterfoil_attempt (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    intent INTEGER NOT NULL,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    at REAL NOT NULL,
    standing BLOB
);

CREATE INDEX counterfoil_attempt_intent ON counterfoil_attempt (intent);

-- The send-right of a claim: the owner's grant and the revocation compete for the one row.
CREATE TABLE counterfoil_sending (
    attempt INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    at REAL NOT NULL
);

-- The end of a claim: its owner and whoever recovers compete for the one row.
CREATE TABLE counterfoil_receipt (
    attempt INTEGER PRIMARY KEY,
    intent INTEGER NOT NULL,
    phase TEXT NOT NULL,
    final INTEGER NOT NULL,
    body BLOB NOT NULL,
    owner TEXT NOT NULL,
    at REAL NOT NULL
);

-- What people look for among many delivered ones.
CREATE INDEX counterfoil_receipt_rare ON counterfoil_receipt (phase, attempt)
    WHERE final = 1 AND phase <> 'accepted';

CREATE TABLE counterfoil_late_evidence (
    seq INTEGER PRIMARY KEY,
    intent INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    claims TEXT NOT NULL,
    body BLOB NOT NULL,
    owner TEXT NOT NULL,
    at REAL NOT NULL
);

CREATE INDEX counterfoil_late_evidence_intent ON counterfoil_late_evidence (intent);

-- The next free place of each lane, advanced by staging, and the place that is being delivered, advanced by dispatch.
CREATE TABLE counterfoil_lane_tail (
    lane TEXT PRIMARY KEY,
    next INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE counterfoil_lane_head (
    lane TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    stuck TEXT,
    since REAL
) WITHOUT ROWID;

-- Lives of dispatchers. Attempts below `low` that are theirs have all ended.
CREATE TABLE counterfoil_dispatcher (
    epoch TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    since REAL NOT NULL,
    low INTEGER NOT NULL,
    ended INTEGER NOT NULL
) WITHOUT ROWID;

-- What people did, in order; `number` counts the acts on one scope.
CREATE TABLE counterfoil_act (
    seq INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    by TEXT NOT NULL,
    reason TEXT NOT NULL,
    body BLOB NOT NULL,
    at REAL NOT NULL
);

CREATE UNIQUE INDEX counterfoil_act_scope ON counterfoil_act (scope, number);

-- Messages that consumers have taken, each once.
CREATE TABLE counterfoil_inbox (
    source TEXT NOT NULL,
    message TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (source, message)
) WITHOUT ROWID;

CREATE INDEX counterfoil_inbox_age ON counterfoil_inbox (at);

-- What is paused: `*` or `recipient:<name>`.
CREATE TABLE counterfoil_pause (
    scope TEXT PRIMARY KEY,
    since REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE counterfoil_outbox (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    -- The accepted generation in which a person last let it go on; an outbox of an earlier one is paused.
    resumed INTEGER NOT NULL
);

INSERT INTO counterfoil_outbox (id, resumed) SELECT 1, accepted FROM counterfoil_ledger;
