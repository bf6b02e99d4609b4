-- +goose Up

-- What may be promised of each SKU. available is null where stock is unlimited:
-- such a SKU is never counted, nothing is held and nothing comes back.
CREATE TABLE stock (
    sku        text PRIMARY KEY,
    available  bigint CHECK (available >= 0),
    held       bigint NOT NULL DEFAULT 0 CHECK (held >= 0),
    sold       bigint NOT NULL DEFAULT 0 CHECK (sold >= 0),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- One row an order. The CHECK makes a state that the domain cannot build impossible
-- here too: among others, an order that is both paid and closed, or closed early.
CREATE TABLE orders (
    id                uuid PRIMARY KEY,
    status            text NOT NULL DEFAULT 'pending',
    customer_id       text NOT NULL,
    customer_email    text NOT NULL,
    currency          text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    payment_window_ms bigint NOT NULL CHECK (payment_window_ms > 0),
    due_at            timestamptz NOT NULL,
    created_at        timestamptz NOT NULL,
    paid_at           timestamptz,
    closed_at         timestamptz,
    closed_by         text CHECK (closed_by IN ('timer', 'sweep', 'replay')),
    idempotency_key   text,
    request_hash      bytea,
    CONSTRAINT orders_state CHECK (
        CASE status
            WHEN 'pending' THEN num_nonnulls(paid_at, closed_at, closed_by) = 0
            WHEN 'paid'    THEN paid_at IS NOT NULL AND num_nonnulls(closed_at, closed_by) = 0
            WHEN 'closed'  THEN paid_at IS NULL AND closed_at >= due_at AND closed_by IS NOT NULL
            ELSE false
        END),
    CONSTRAINT orders_idempotency CHECK (num_nonnulls(idempotency_key, request_hash) IN (0, 2))
);

CREATE UNIQUE INDEX orders_idempotency_key ON orders (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- What is still open, by deadline: small however many orders are settled.
CREATE INDEX orders_pending_due ON orders (due_at) WHERE status = 'pending';

-- held is what this line took from stock: quantity, or 0 where stock is unlimited.
-- Together with the order's status it says where the units are, so an order that is
-- closed has given them back, by construction.
CREATE TABLE order_lines (
    order_id   uuid NOT NULL REFERENCES orders (id),
    position   int NOT NULL,
    sku        text NOT NULL REFERENCES stock (sku),
    quantity   bigint NOT NULL CHECK (quantity > 0),
    unit_price bigint NOT NULL CHECK (unit_price >= 0),
    held       bigint NOT NULL CHECK (held IN (0, quantity)),
    PRIMARY KEY (order_id, position),
    UNIQUE (order_id, sku)
);

-- Every payment that the provider reported, once. refund_reason is set where the
-- money must go back.
CREATE TABLE payments (
    id            text PRIMARY KEY,
    order_id      uuid NOT NULL REFERENCES orders (id),
    amount        bigint NOT NULL CHECK (amount >= 0),
    currency      text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    received_at   timestamptz NOT NULL,
    refund_reason text CHECK (refund_reason IN ('order_closed', 'already_paid'))
);

CREATE INDEX payments_order ON payments (order_id);

-- An order is paid by one payment at most.
CREATE UNIQUE INDEX payments_accepted ON payments (order_id) WHERE refund_reason IS NULL;

-- Messages that wait to be published, written with the change they tell of. A row is
-- deleted once the broker confirmed it, so the table stays small. due_at is set on
-- timers: the relay turns it into the delay that is left. A row that cannot be sent
-- waits for next_attempt_at and tells why in last_error.
CREATE TABLE outbox (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id      uuid NOT NULL,
    order_id        uuid NOT NULL,
    type            text NOT NULL,
    payload         json NOT NULL,
    due_at          timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    attempts        int NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    last_error      text
) WITH (
    -- Rows live for milliseconds: vacuum often, or the poll reads dead rows.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX outbox_next ON outbox (next_attempt_at, id);

-- One row for each mail that a buyer may get. Who holds the claim sends it; a claim
-- that was not turned into sent_at by claimed_until belongs to a sender that died.
CREATE TABLE notifications (
    order_id      uuid NOT NULL REFERENCES orders (id),
    kind          text NOT NULL,
    reference     text NOT NULL DEFAULT '', -- the payment, where there is a mail for each
    claimed_until timestamptz NOT NULL,
    sent_at       timestamptz,
    PRIMARY KEY (order_id, kind, reference)
);

-- Every delay that has, or had, a queue in the broker. AMQP cannot list queues, so
-- this is how the queue of a window that is no longer offered is found and removed.
CREATE TABLE delay_queues (
    namespace        text NOT NULL,
    delay_ms         bigint NOT NULL CHECK (delay_ms > 0),
    last_declared_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, delay_ms)
);

-- +goose Down
DROP TABLE delay_queues, notifications, outbox, payments, order_lines, orders, stock;
