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

-- One round of a dispatcher's life, within its transaction: records how claims ended, claims what is due, and takes the
-- send-right for what starts now. The first row says what came of it, each other one is a claim. Plans are kept from call to
-- call, so none may look through a whole table, however small that was when the plan was made.
CREATE FUNCTION :schema.dispatch(
    -- Whose, and the number of the transaction, whose slot is filled: null where it was filled before.
    whose text, turn_number bigint,
    -- Seconds since 1970; null: the database's clock.
    moment double precision,
    -- Ends: claim, intent, how, whether that is the intent's own end, what is recorded, whether a retired life may say so.
    ends bigint[], end_intents bigint[], end_phases text[], end_finals boolean[], end_bodies bytea[], end_facts boolean[],
    -- What is claimed: kind, recipient and its operations (a line each), how far back is looked, how many of the kind there is
    -- room for.
    kinds text[], recipients text[], known text[], lows double precision[], room integer[], format_max integer,
    -- Claims whose send-right is wanted: the place of their scope, and until when.
    rights bigint[], right_places integer[], right_until double precision[], right_scopes text[]
) RETURNS TABLE (
    at double precision, accepted bigint, live boolean, paused text[], recorded bigint[], granted bigint[],
    attempt bigint, kind text, due double precision, standing bytea, intent bigint, effect_id text, namespace text,
    key text, recipient text, operation text, format integer, body bytea, policy text, lane text, place bigint,
    on_stuck text, expires_at double precision, generation bigint, trace text
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    clock CONSTANT double precision := coalesce(moment, extract(epoch FROM clock_timestamp())::double precision);
    state smallint;
    alive boolean;
    accepted_in bigint;
    scopes text[];
    ended bigint[];
    granted_now bigint[];
    claimed bigint[];
    newest double precision;
    left_over integer;
    last_kind text := '';
    operations text[];
BEGIN
    PERFORM :schema.insist();
    IF turn_number IS NOT NULL THEN
        INSERT INTO :schema.turn (epoch, number) VALUES (whose, turn_number);
    END IF;
    -- The owner's row is locked until the commit: nobody retires this life meanwhile (rule L7).
    SELECT o.retired INTO state FROM :schema.owner o WHERE o.epoch = whose FOR SHARE;
    alive := state IS NOT DISTINCT FROM 0::smallint;
    SELECT l.accepted, ARRAY(SELECT p.scope FROM :schema.pause p) || CASE WHEN l.accepted > b.resumed THEN '{*}'::text[] END
        INTO accepted_in, scopes FROM :schema.ledger l, :schema.outbox b WHERE l.id = 1 AND b.id = 1;
    IF cardinality(ends) > 0 THEN
        WITH ours AS (
            INSERT INTO :schema.receipt AS c (attempt, intent, phase, final, body, owner, at)
            SELECT e.attempt, e.intent, e.phase, e.final, e.body, whose, clock
            FROM unnest(ends, end_intents, end_phases, end_finals, end_bodies, end_facts)
                AS e (attempt, intent, phase, final, body, fact)
            WHERE e.fact OR alive ORDER BY e.attempt
            ON CONFLICT (attempt) DO NOTHING RETURNING c.attempt
        )
        SELECT array_agg(o.attempt) INTO ended FROM ours o;
    END IF;
    IF cardinality(rights) > 0 AND alive AND NOT '*' = ANY (scopes) THEN
        WITH ours AS (
            INSERT INTO :schema.sending AS s (attempt, kind, owner, at)
            SELECT r.attempt, 'grant', whose, clock FROM unnest(rights, right_places, right_until) AS r (attempt, place, until)
            WHERE clock < r.until AND NOT right_scopes[r.place] = ANY (scopes)
            ON CONFLICT (attempt) DO NOTHING RETURNING s.attempt
        )
        SELECT array_agg(o.attempt) INTO granted_now FROM ours o;
    END IF;
    RETURN QUERY SELECT clock, accepted_in, alive, scopes, ended, granted_now, NULL::bigint, NULL, NULL::float8, NULL::bytea,
        NULL::bigint, NULL, NULL, NULL, NULL, NULL, NULL::integer, NULL::bytea, NULL, NULL, NULL::bigint, NULL, NULL::float8,
        NULL::bigint, NULL;
    IF NOT alive OR '*' = ANY (scopes) THEN
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(kinds) LOOP
        IF kinds[i] <> last_kind THEN
            last_kind := kinds[i];
            left_over := room[i];
        END IF;
        CONTINUE WHEN left_over <= 0 OR 'recipient:' || recipients[i] = ANY (scopes);
        operations := string_to_array(known[i], E'\n');
        SELECT array_agg(d.intent), max(d.due) INTO claimed, newest FROM (
            SELECT r.intent, r.due FROM :schema.ready r
            WHERE r.kind = kinds[i] AND r.recipient = recipients[i] AND r.due >= lows[i] AND r.due <= clock
                AND r.format <= format_max AND r.operation = ANY (operations)
            ORDER BY r.due, r.intent LIMIT left_over FOR UPDATE OF r SKIP LOCKED
        ) d;
        CONTINUE WHEN claimed IS NULL;
        left_over := left_over - cardinality(claimed);
        RETURN QUERY
            WITH taken AS (
                DELETE FROM :schema.ready r WHERE r.intent = ANY (claimed) RETURNING r.intent, r.kind, r.due, r.standing
            ), made AS (
                INSERT INTO :schema.attempt AS a (intent, kind, owner, at, standing)
                SELECT t.intent, t.kind, whose, clock, t.standing FROM taken t ORDER BY t.due, t.intent
                RETURNING a.seq, a.intent, a.standing
            )
            SELECT NULL::float8, NULL::bigint, NULL::boolean, NULL::text[], NULL::bigint[], NULL::bigint[],
                m.seq, kinds[i], newest, m.standing, m.intent, n.effect_id, n.namespace, n.key, n.recipient, n.operation,
                n.format, n.body, n.policy, n.lane, n.place, n.on_stuck, n.expires_at, n.generation, n.trace
            FROM made m CROSS JOIN LATERAL (SELECT * FROM :schema.intent f WHERE f.seq = m.intent LIMIT 1) n;
    END LOOP;
END
$$;

-- Lets the next intents of lanes be due, where these places are the heads, one lane after the other as they are given.
CREATE FUNCTION :schema.advance(lanes text[], places bigint[], moment double precision) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    FOR i IN 1 .. cardinality(lanes) LOOP
        WITH past AS (DELETE FROM :schema.lane_head h WHERE h.lane = lanes[i] AND h.at = places[i] RETURNING h.at)
        INSERT INTO :schema.lane_head (lane, at) SELECT lanes[i], places[i] + 1
            WHERE EXISTS (SELECT FROM past)
                OR (places[i] = 1 AND NOT EXISTS (SELECT FROM :schema.lane_head h WHERE h.lane = lanes[i]))
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            UPDATE :schema.ready SET due = greatest(not_before, moment)
                WHERE lane = lanes[i] AND place = places[i] + 1 AND due IS NULL AND state = 'pending';
        END IF;
    END LOOP;
END
$$;
