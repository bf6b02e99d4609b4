-- +goose Up

-- Messages that need a person. A row is one parking, never changed but in where it
-- stands: a message that is replayed and fails again gets a row of its own, which names
-- the earlier one.
CREATE TABLE parked_messages (
    id              uuid PRIMARY KEY,      -- UUIDv7: the order of ingestion
    parking_key     bytea NOT NULL UNIQUE, -- digest of the whole delivery: the broker may deliver it twice
    status          text NOT NULL DEFAULT 'parked',
    consumer        text NOT NULL,         -- whose handler failed, and who gets a replay
    type            text NOT NULL,
    message_id      text NOT NULL,
    order_id        uuid,                  -- null where the body tells none; the order need not exist
    class           text NOT NULL,
    error           text NOT NULL,
    group_id        text NOT NULL,         -- digest of consumer, type and what the error has in common with others
    attempts        int NOT NULL,
    queue           text NOT NULL,         -- where it first came from
    exchange        text NOT NULL,
    routing_key     text NOT NULL,
    first_failed_at timestamptz NOT NULL,
    last_failed_at  timestamptz NOT NULL,
    parked_at       timestamptz NOT NULL DEFAULT now(),
    headers         jsonb NOT NULL,        -- the sender's own, which a replay sends again
    story           jsonb NOT NULL,        -- what else came with it, for people
    payload         bytea NOT NULL,        -- as it was parked, for good
    edited_payload  bytea,                 -- what a replay sends instead
    previous_id     uuid REFERENCES parked_messages (id),
    replays         int NOT NULL DEFAULT 0, -- of this message before this parking
    settled_at      timestamptz,
    reason          text,                  -- why it was resolved or discarded
    CONSTRAINT parked_status CHECK (
        CASE status
            WHEN 'parked'       THEN settled_at IS NULL
            WHEN 'replaying'    THEN settled_at IS NULL
            WHEN 'handled'      THEN settled_at IS NOT NULL
            WHEN 'failed_again' THEN settled_at IS NOT NULL
            WHEN 'resolved'     THEN settled_at IS NOT NULL AND reason IS NOT NULL
            WHEN 'discarded'    THEN settled_at IS NOT NULL AND reason IS NOT NULL
            ELSE false
        END)
);

-- What is still open, newest first; its groups; the story of an order.
CREATE INDEX parked_messages_open ON parked_messages (id) WHERE settled_at IS NULL;
CREATE INDEX parked_messages_open_group ON parked_messages (group_id, id) WHERE settled_at IS NULL;
CREATE INDEX parked_messages_order ON parked_messages (order_id, id) WHERE order_id IS NOT NULL;
CREATE INDEX parked_messages_previous ON parked_messages (previous_id) WHERE previous_id IS NOT NULL;

-- A replay run. Whoever holds the lease works on it; when that process dies another
-- one goes on after leased_until.
CREATE TABLE replay_runs (
    id            uuid PRIMARY KEY, -- UUIDv7
    status        text NOT NULL CHECK (status IN ('canary', 'running', 'stopping', 'done', 'stopped', 'canary_failed')),
    ending        text CHECK (ending IN ('stopped', 'canary_failed')), -- what a run that is stopping becomes
    requested_by  text NOT NULL,
    selection     jsonb NOT NULL,   -- what was asked for, for people
    rate          double precision CHECK (rate > 0), -- messages a second, null: as fast as it can
    canaries      int NOT NULL CHECK (canaries >= 0),
    total         int NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz,
    leased_until  timestamptz NOT NULL DEFAULT '-infinity',
    CHECK ((status IN ('done', 'stopped', 'canary_failed')) = (finished_at IS NOT NULL))
);

CREATE INDEX replay_runs_open ON replay_runs (id) WHERE finished_at IS NULL;

-- Each message of a run, once. A message may be in one open run at a time.
CREATE TABLE replay_items (
    run_id     uuid NOT NULL REFERENCES replay_runs (id),
    parked_id  uuid NOT NULL REFERENCES parked_messages (id),
    outcome    text NOT NULL DEFAULT 'waiting' CHECK (outcome IN ('waiting', 'sent', 'handled', 'failed_again', 'resolved', 'skipped', 'unknown')),
    reason     text,
    sent_at    timestamptz,
    settled_at timestamptz,
    PRIMARY KEY (run_id, parked_id)
);

CREATE INDEX replay_items_waiting ON replay_items (run_id, parked_id) WHERE outcome = 'waiting';
CREATE INDEX replay_items_parked ON replay_items (parked_id);
CREATE UNIQUE INDEX replay_items_open ON replay_items (parked_id) WHERE outcome IN ('waiting', 'sent');

-- Who did what to failed messages, kept for good.
CREATE TABLE audit (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    operator text NOT NULL,
    action   text NOT NULL,
    subject  text NOT NULL,  -- the message or run
    messages int NOT NULL,   -- how many it touched
    outcome  text NOT NULL,
    detail   jsonb NOT NULL DEFAULT '{}'
);

-- +goose StatementBegin
CREATE FUNCTION audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is kept for good: % refused', TG_OP;
END $$;
-- +goose StatementEnd

CREATE TRIGGER audit_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_is_kept();

-- Overdue orders that the sweep could not close, and when it tries again.
CREATE TABLE sweep_failures (
    order_id        uuid PRIMARY KEY REFERENCES orders (id),
    attempts        int NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    last_error      text NOT NULL,
    last_failed_at  timestamptz NOT NULL
);

-- Orders paid ahead of their deadline, whose timers are still on their way.
CREATE INDEX orders_paid_due ON orders (due_at) WHERE status = 'paid';

-- +goose Down
DROP INDEX orders_paid_due;
DROP TABLE sweep_failures, audit, replay_items, replay_runs, parked_messages;
DROP FUNCTION audit_is_kept;
