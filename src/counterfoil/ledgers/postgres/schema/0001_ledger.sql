-- Tables and functions of the ledger, in a schema of their own.
--
-- The hot functions are written in PL/pgSQL: each statement inside one sees what was committed before it began, so a
-- lock can be taken and then be looked behind in one round trip, and their plans are kept without prepared statements.

CREATE TABLE :schema.ledger (
    id smallint PRIMARY KEY CHECK (id = 1),
    -- Advances when a person accepts a ledger that went back in time; epochs begin with it.
    generation bigint NOT NULL,
    -- The generation in which a person last accepted it; 0 if nobody did.
    accepted bigint NOT NULL,
    -- Where this ledger lives. A restored backup, a promoted standby or a copy lives elsewhere.
    system_identifier bigint NOT NULL,
    timeline text NOT NULL,
    database oid NOT NULL,
    record oid NOT NULL
);

CREATE TABLE :schema.owner (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch text COLLATE "C" NOT NULL UNIQUE,
    label text NOT NULL,
    since double precision NOT NULL,
    -- Seconds between two beats of this owner; observers count in them.
    beat_s double precision NOT NULL,
    -- 0: may decide; 1: retired; 2: known from its facts only, never registered here.
    retired smallint NOT NULL
);

CREATE INDEX owner_living ON :schema.owner (id) WHERE retired = 0;

-- Apart from `owner`, so that a beat never waits for an append, which holds a lock on its owner's row.
CREATE TABLE :schema.beat (
    owner integer PRIMARY KEY,
    count bigint NOT NULL,
    -- For people: nothing is decided by it.
    at timestamp with time zone NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE :schema.run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    run text COLLATE "C" NOT NULL,
    began double precision NOT NULL,
    -- Only the tombstone and what it names are left.
    buried boolean NOT NULL DEFAULT false,
    UNIQUE (namespace, run)
);

CREATE TABLE :schema.record (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    run bigint NOT NULL,
    append_id bigint NOT NULL,
    at double precision NOT NULL,
    check_sum bigint NOT NULL,
    -- The transaction that made it, for finding what others made since a look.
    made_by xid8 NOT NULL DEFAULT pg_current_xact_id(),
    owner integer NOT NULL,
    kind smallint NOT NULL,
    format smallint NOT NULL,
    slot text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    -- The first record of a slot wins.
    UNIQUE (run, slot)
);

CREATE UNIQUE INDEX record_run ON :schema.record (run, seq);

CREATE INDEX record_made ON :schema.record (made_by);

-- What operators look for among many finished runs (uncertain, rejected, failed, released, notes ...).
CREATE INDEX record_rare ON :schema.record (kind, run) WHERE kind NOT IN (0, 2, 3, 4, 5, 6, 15, 16, 17);

-- Runs that are finished.
CREATE INDEX record_finished ON :schema.record (run) WHERE kind = 17;

INSERT INTO :schema.ledger (id, generation, accepted, system_identifier, timeline, database, record)
SELECT 1, 1, 0, c.system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), d.oid,
    ':schema.record'::regclass
FROM pg_control_system() c, pg_database d WHERE d.datname = current_database();

-- Says why this database is not the one that it was, or null. A promoted standby has another timeline at once, before
-- its first checkpoint; a restored dump has other tables.
CREATE FUNCTION :schema.moved() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN l.system_identifier <> c.system_identifier THEN 'it was made by another server'
        WHEN l.timeline <> substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) THEN
            'the server''s timeline is ' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
                || ', and was ' || l.timeline || ': a standby was promoted, or a backup recovered'
        WHEN l.database <> d.oid THEN 'it was copied or restored from another database'
        WHEN l.record <> ':schema.record'::regclass::oid THEN 'its tables were restored from a dump'
    END
    FROM :schema.ledger l, pg_control_system() c, pg_database d WHERE l.id = 1 AND d.datname = current_database()
$$;

-- Makes the transaction's commit wait for the disk, and for standbys where the server has synchronous ones.
CREATE FUNCTION :schema.insist() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- Fills slots, in order; returns one row for each entry. The runs come sorted, so that no two callers lock each other
-- out. The lock on a run's row is held until the commit: positions within a run are in commit order, no tombstone comes in
-- between, and the transaction has written something, so that whatever it answers waits for its own commit. With
-- `patience_ms` < 0 a run that somebody else has locked is passed over.
CREATE FUNCTION :schema.append(
    patience_ms integer, keeping boolean,
    spaces text[], names text[], epochs text[],
    places smallint[], owners smallint[], slots text[], kinds smallint[], bodies bytea[], ids bigint[],
    times double precision[], sums bigint[], formats smallint[], decisions boolean[]
) RETURNS TABLE (
    verdict smallint, seq bigint, kind smallint, body bytea, epoch text, append_id bigint, at double precision,
    check_sum bigint, format smallint
-- A plan that was made while a table was small is kept while it grows.
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    total CONSTANT integer := cardinality(slots);
    -- Notes and the tombstone are taken by a pruned run too.
    outliving CONSTANT smallint[] := '{13, 14, 18}';
    deciding CONSTANT boolean := true = ANY (decisions);
    run_ids bigint[];
    buried boolean[];
    busy boolean[];
    owner_ids integer[];
    live boolean[];
    all_admitted boolean := true;
    some_id bigint;
    some_state smallint;
    is_buried boolean;
    added bigint[];
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF patience_ms > 0 THEN
        PERFORM set_config('lock_timeout', patience_ms::text, true);
    END IF;
    -- What can change under a process that lives on: another timeline behind its address, or tables from a dump.
    IF NOT EXISTS (
        SELECT FROM :schema.ledger l WHERE l.id = 1 AND l.record = ':schema.record'::regclass::oid
            AND l.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
    ) THEN
        RETURN QUERY SELECT 4::smallint, NULL::bigint, NULL::smallint, NULL::bytea, NULL, NULL::bigint, NULL::float8,
            NULL::bigint, NULL::smallint FROM generate_series(1, total);
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(epochs) LOOP
        some_id := 0;
        some_state := 0;
        IF epochs[i] <> '' THEN
            IF deciding THEN
                -- Whoever retires it waits until this commits, and this sees whoever has retired it.
                SELECT o.id, o.retired INTO some_id, some_state FROM :schema.owner o WHERE o.epoch = epochs[i] FOR SHARE;
            ELSE
                SELECT o.id, o.retired INTO some_id, some_state FROM :schema.owner o WHERE o.epoch = epochs[i];
            END IF;
            IF some_id IS NULL AND EXISTS (
                SELECT FROM unnest(owners, decisions) AS e (owner, decision) WHERE e.owner = i AND NOT e.decision
            ) THEN
                -- A host without owners of ours, or a life from elsewhere: it may state facts.
                INSERT INTO :schema.owner (epoch, label, since, beat_s, retired) VALUES (epochs[i], '', times[1], 0, 2)
                    ON CONFLICT DO NOTHING;
                SELECT o.id, o.retired INTO some_id, some_state FROM :schema.owner o WHERE o.epoch = epochs[i];
            END IF;
        END IF;
        owner_ids[i] := some_id;
        live[i] := some_state IS NOT DISTINCT FROM 0::smallint;
        all_admitted := all_admitted AND (live[i] OR NOT deciding);
    END LOOP;
    FOR i IN 1 .. cardinality(names) LOOP
        busy[i] := false;
        IF patience_ms < 0 THEN
            SELECT r.id, r.buried INTO some_id, is_buried FROM :schema.run r
                WHERE r.namespace = spaces[i] AND r.run = names[i] FOR NO KEY UPDATE SKIP LOCKED;
        ELSE
            SELECT r.id, r.buried INTO some_id, is_buried FROM :schema.run r
                WHERE r.namespace = spaces[i] AND r.run = names[i] FOR NO KEY UPDATE;
        END IF;
        IF some_id IS NULL AND (all_admitted OR EXISTS (
            SELECT FROM unnest(places, owners, decisions) AS e (place, owner, decision)
            WHERE e.place = i AND (live[e.owner] OR NOT e.decision)
        )) THEN
            INSERT INTO :schema.run AS r (namespace, run, began)
                VALUES (spaces[i], names[i], times[array_position(places, i::smallint)])
                ON CONFLICT DO NOTHING RETURNING r.id, r.buried INTO some_id, is_buried;
            IF some_id IS NULL AND patience_ms < 0 THEN
                busy[i] := true;
            ELSIF some_id IS NULL THEN
                SELECT r.id, r.buried INTO some_id, is_buried FROM :schema.run r
                    WHERE r.namespace = spaces[i] AND r.run = names[i] FOR NO KEY UPDATE;
            END IF;
        END IF;
        run_ids[i] := some_id;
        buried[i] := coalesce(is_buried, false) AND NOT keeping;
        all_admitted := all_admitted AND some_id IS NOT NULL AND NOT buried[i];
    END LOOP;
    IF total = 1 AND all_admitted AND kinds[1] <> 18 THEN
        -- What a lone caller needs, at a third of the price.
        INSERT INTO :schema.record AS r (run, slot, kind, body, owner, append_id, at, check_sum, format)
            VALUES (run_ids[1], slots[1], kinds[1], bodies[1], owner_ids[1], ids[1], times[1], sums[1], formats[1])
            ON CONFLICT (run, slot) DO NOTHING RETURNING r.seq INTO seq;
        IF seq IS NOT NULL THEN
            verdict := 0;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    WITH ours AS (
        INSERT INTO :schema.record AS r (run, slot, kind, body, owner, append_id, at, check_sum, format)
        SELECT run_ids[e.place], e.slot, e.kind, e.body, owner_ids[e.owner], e.id, e.at, e.sum, e.format
        FROM unnest(places, owners, slots, kinds, bodies, ids, times, sums, formats, decisions)
            WITH ORDINALITY AS e (place, owner, slot, kind, body, id, at, sum, format, decision, number)
        WHERE all_admitted OR (
            run_ids[e.place] IS NOT NULL AND (live[e.owner] OR NOT e.decision) AND (e.kind = ANY (outliving) OR NOT buried[e.place])
        )
        ORDER BY e.number
        ON CONFLICT (run, slot) DO NOTHING
        RETURNING r.seq
    )
    SELECT array_agg(o.seq) INTO added FROM ours o;
    IF 18 = ANY (kinds) THEN
        UPDATE :schema.run r SET buried = true WHERE r.id = ANY (run_ids) AND NOT r.buried AND EXISTS (
            SELECT FROM :schema.record t WHERE t.run = r.id AND t.slot = 'run/tombstone'
        );
    END IF;
    IF cardinality(added) = total THEN
        RETURN QUERY SELECT 0::smallint, a.seq, NULL::smallint, NULL::bytea, NULL, NULL::bigint, NULL::float8,
            NULL::bigint, NULL::smallint FROM unnest(added) WITH ORDINALITY AS a (seq, number) ORDER BY a.number;
        RETURN;
    END IF;
    -- 1: this is what fills the slot; 2: the run is pruned; 3: the owner may not decide; 4: the ledger went back in time;
    -- 5: somebody else has the run.
    RETURN QUERY
        SELECT CASE
                WHEN busy[e.place] THEN 5::smallint
                WHEN buried[e.place] AND NOT e.kind = ANY (outliving) THEN 2::smallint
                WHEN r.seq IS NOT NULL THEN 1::smallint
                ELSE 3::smallint
            END,
            r.seq, r.kind, r.body, coalesce(o.epoch, ''), r.append_id, r.at, r.check_sum, r.format
        FROM unnest(places, slots, kinds) WITH ORDINALITY AS e (place, slot, kind, number)
        LEFT JOIN LATERAL (
            SELECT * FROM :schema.record f WHERE f.run = run_ids[e.place] AND f.slot = e.slot LIMIT 1
        ) r ON true
        LEFT JOIN :schema.owner o ON o.id = r.owner
        ORDER BY e.number;
END
$$;

-- Fills one slot, as `append` does where all is well, at half its price; returns the position. Null: it did nothing, and
-- `append` finds out why not. What is locked is looked at again behind the lock, so that one statement is enough.
CREATE FUNCTION :schema.append_one(
    patience_ms integer, space text, name text, whose text, deciding boolean,
    place text, code smallint, content bytea, id bigint, moment double precision, sum bigint, form smallint
) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict error
DECLARE
    made bigint;
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM set_config('lock_timeout', patience_ms::text, true);
    IF deciding THEN
        INSERT INTO :schema.record AS f (run, slot, kind, body, owner, append_id, at, check_sum, format)
            SELECT r.id, place, code, content, o.id, append_one.id, moment, sum, form
            FROM :schema.ledger l, :schema.owner o, :schema.run r
            WHERE l.id = 1 AND l.record = ':schema.record'::regclass::oid
                AND l.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
                AND o.epoch = whose AND o.retired = 0 AND r.namespace = space AND r.run = append_one.name AND NOT r.buried
            FOR SHARE OF o FOR NO KEY UPDATE OF r
            ON CONFLICT DO NOTHING RETURNING f.seq INTO made;
    ELSE
        INSERT INTO :schema.record AS f (run, slot, kind, body, owner, append_id, at, check_sum, format)
            SELECT r.id, place, code, content, o.id, append_one.id, moment, sum, form
            FROM :schema.ledger l, :schema.owner o, :schema.run r
            WHERE l.id = 1 AND l.record = ':schema.record'::regclass::oid
                AND l.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
                AND o.epoch = whose AND r.namespace = space AND r.run = append_one.name AND NOT r.buried
            FOR NO KEY UPDATE OF r
            ON CONFLICT DO NOTHING RETURNING f.seq INTO made;
    END IF;
    IF made IS NULL THEN
        -- Nothing was written that must last.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN made;
END
$$;

-- Registers a life and returns its epoch; null where a person must accept the ledger first. The same random part again
-- finds what a lost answer left.
CREATE FUNCTION :schema.register(random text, label text, beat_s double precision) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    made text;
    made_id integer;
BEGIN
    PERFORM :schema.insist();
    IF :schema.moved() IS NOT NULL THEN
        RETURN NULL;
    END IF;
    SELECT l.generation || '.' || random INTO made FROM :schema.ledger l;
    INSERT INTO :schema.owner AS o (epoch, label, since, beat_s, retired)
        VALUES (made, label, extract(epoch FROM clock_timestamp()), beat_s, 0)
        ON CONFLICT DO NOTHING RETURNING o.id INTO made_id;
    IF made_id IS NOT NULL THEN
        INSERT INTO :schema.beat (owner, count, at) VALUES (made_id, 0, clock_timestamp());
    END IF;
    RETURN made;
END
$$;

-- Retires a life; with `silent_at` only if its counter still stands there. Waits for the appends that its lock is held
-- for, and those that come later find it retired.
CREATE FUNCTION :schema.retire(whose text, silent_at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found_id integer;
BEGIN
    PERFORM :schema.insist();
    SELECT o.id INTO found_id FROM :schema.owner o WHERE o.epoch = whose AND o.retired = 0 FOR UPDATE;
    IF found_id IS NULL THEN
        RETURN EXISTS (SELECT FROM :schema.owner o WHERE o.epoch = whose AND o.retired = 1);
    END IF;
    IF silent_at IS NOT NULL AND EXISTS (SELECT FROM :schema.beat b WHERE b.owner = found_id AND b.count <> silent_at) THEN
        RETURN false;
    END IF;
    UPDATE :schema.owner SET retired = 1 WHERE id = found_id;
    DELETE FROM :schema.beat WHERE owner = found_id;
    RETURN true;
END
$$;

-- One beat of own lives, and the counters of all. It need not be durable.
CREATE FUNCTION :schema.beats(own text[])
RETURNS TABLE (epoch text, count bigint, beat_s double precision) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE :schema.beat AS b SET count = b.count + 1, at = clock_timestamp()
        FROM :schema.owner o WHERE o.epoch = ANY (own) AND o.retired = 0 AND b.owner = o.id;
    RETURN QUERY SELECT o.epoch, b.count, o.beat_s
        FROM :schema.owner o JOIN :schema.beat b ON b.owner = o.id WHERE o.retired = 0;
END
$$;

-- Takes this database for the ledger's home from now on, ends all lives, and returns the new generation. Positions jump,
-- so that none is given out twice that was given out in what is lost.
CREATE FUNCTION :schema.accept() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    made bigint;
BEGIN
    PERFORM :schema.insist();
    UPDATE :schema.ledger l SET generation = l.generation + 1, accepted = l.generation + 1,
        system_identifier = c.system_identifier, timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8),
        database = d.oid, record = ':schema.record'::regclass
        FROM pg_control_system() c, pg_database d WHERE l.id = 1 AND d.datname = current_database()
        RETURNING l.generation INTO made;
    UPDATE :schema.owner SET retired = 1 WHERE retired = 0;
    DELETE FROM :schema.beat;
    PERFORM setval(pg_get_serial_sequence(':schema.record', 'seq'),
        greatest(nextval(pg_get_serial_sequence(':schema.record', 'seq')), made << 40));
    RETURN made;
END
$$;
