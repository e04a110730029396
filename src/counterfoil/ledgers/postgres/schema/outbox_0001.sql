-- Tables of the outbox, in the ledger's schema. Most are only ever appended. `ready` and `lane_head` see inserts and deletes,
-- and are looked up where nothing dead lies in between, so that a held snapshot slows nothing down.

CREATE TABLE :schema.intent (
    -- A handle, not an order: what commits later may have a smaller one.
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    effect_id text COLLATE "C" NOT NULL UNIQUE,
    namespace text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    recipient text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    format integer NOT NULL,
    -- NULL once it was pruned: identity and fingerprint stay.
    body bytea,
    fingerprint text NOT NULL,
    policy text,
    lane text COLLATE "C",
    place bigint,
    on_stuck text NOT NULL,
    not_before double precision,
    expires_at double precision,
    -- The ledger's generation when it was staged: older than an accepted restore, it may have been sent already.
    generation bigint NOT NULL,
    staged_at double precision NOT NULL,
    trace text
);

CREATE UNIQUE INDEX intent_lane ON :schema.intent (lane, place) WHERE lane IS NOT NULL;

-- What waits for somebody. `due` is NULL for what is not first in its lane, and for what a person must look at.
CREATE TABLE :schema.ready (
    intent bigint PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    recipient text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    format integer NOT NULL,
    due double precision,
    not_before double precision NOT NULL,
    lane text COLLATE "C",
    place bigint,
    state text COLLATE "C" NOT NULL,
    reason text,
    since double precision NOT NULL,
    standing bytea
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX ready_due ON :schema.ready (kind, recipient, due, intent) WHERE due IS NOT NULL;

CREATE INDEX ready_resting ON :schema.ready (state) WHERE due IS NULL;

CREATE INDEX ready_lane ON :schema.ready (lane, place) WHERE lane IS NOT NULL;

-- Claims, each with what was known of its intent before it.
CREATE TABLE :schema.attempt (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    standing bytea
);

CREATE INDEX attempt_intent ON :schema.attempt (intent);

-- The send-right of a claim: the owner's grant and the revocation compete for the one row.
CREATE TABLE :schema.sending (
    attempt bigint PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    at double precision NOT NULL
);

-- The end of a claim: its owner and whoever recovers compete for the one row.
CREATE TABLE :schema.receipt (
    attempt bigint PRIMARY KEY,
    intent bigint NOT NULL,
    phase text COLLATE "C" NOT NULL,
    final boolean NOT NULL,
    body bytea NOT NULL,
    owner text COLLATE "C" NOT NULL,
    at double precision NOT NULL
);

-- What people look for among many delivered ones.
CREATE INDEX receipt_rare ON :schema.receipt (phase, attempt) WHERE final AND phase <> 'accepted';

CREATE TABLE :schema.late_evidence (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent bigint NOT NULL,
    attempt bigint NOT NULL,
    claims text NOT NULL,
    body bytea NOT NULL,
    owner text COLLATE "C" NOT NULL,
    at double precision NOT NULL
);

CREATE INDEX late_evidence_intent ON :schema.late_evidence (intent);

-- Lanes. Staging locks its lane's row until its commit, so that places are in commit order and have no gaps; the row never
-- changes, so that nothing dead comes of that.
CREATE TABLE :schema.lane (
    lane text COLLATE "C" PRIMARY KEY
);

-- The place of each lane that is being delivered: its row with the greatest `at`; none: the first. Going on inserts the next
-- and deletes the one before, so that the newest is found first, however many dead ones a held snapshot keeps.
CREATE TABLE :schema.lane_head (
    lane text COLLATE "C" NOT NULL,
    at bigint NOT NULL,
    stuck text,
    since double precision,
    PRIMARY KEY (lane, at)
);

-- Lives of dispatchers. Attempts below `low` that are theirs have all ended.
CREATE TABLE :schema.dispatcher (
    epoch text COLLATE "C" PRIMARY KEY,
    label text NOT NULL,
    since double precision NOT NULL,
    low bigint NOT NULL,
    ended boolean NOT NULL
);

-- Transactions of dispatchers: whoever fills the slot of one whose COMMIT was not answered, `aborted`, knows how it ended.
CREATE TABLE :schema.turn (
    epoch text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    aborted boolean NOT NULL DEFAULT false,
    PRIMARY KEY (epoch, number)
);

-- What people did, in order; `number` counts the acts on one scope.
CREATE TABLE :schema.act (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    name text NOT NULL,
    by text NOT NULL,
    reason text NOT NULL,
    body bytea NOT NULL,
    at double precision NOT NULL,
    UNIQUE (scope, number)
);

-- Messages that consumers have taken, each once.
CREATE TABLE :schema.inbox (
    source text COLLATE "C" NOT NULL,
    message text COLLATE "C" NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (source, message)
);

CREATE INDEX inbox_age ON :schema.inbox (at);

-- What is paused: `*` or `recipient:<name>`.
CREATE TABLE :schema.pause (
    scope text COLLATE "C" PRIMARY KEY,
    since double precision NOT NULL
);

CREATE TABLE :schema.outbox (
    id smallint PRIMARY KEY CHECK (id = 1),
    -- The accepted generation in which a person last let it go on; an outbox of an earlier one is paused.
    resumed bigint NOT NULL
);

INSERT INTO :schema.outbox (id, resumed) SELECT 1, accepted FROM :schema.ledger;
