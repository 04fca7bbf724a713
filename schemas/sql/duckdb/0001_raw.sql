-- Raw telemetry, as it came. Nothing here is ever rewritten by derivation, so every derived table can be rebuilt.
-- Times are integer Unix nanoseconds. JSON columns hold typed JSON (pdtrace/store/encoding.py): int and double stay
-- apart, bytes and non-finite doubles are tagged objects. No keys or indexes on purpose: an anti-join bounded in time
-- is five times cheaper than a primary key and a third of the size. zstd for the long texts of spans: a third of the space
-- and of the checkpoint that DuckDB's own choice takes on Dynamo's spans, and read back as fast.

CREATE TABLE resources (
    resource_id UBIGINT NOT NULL,       -- hash of the resource's canonical JSON; 0 is the empty resource
    resource VARCHAR NOT NULL           -- JSON object
);

CREATE TABLE spans (
    trace_id UUID NOT NULL,
    span_id VARCHAR NOT NULL,           -- 16 hex digits
    parent_id VARCHAR NOT NULL,         -- '' for a root
    name VARCHAR NOT NULL,
    kind UTINYINT NOT NULL,             -- OTLP SpanKind
    start_ns BIGINT NOT NULL,
    end_ns BIGINT NOT NULL,             -- 0 = started and not ended
    scope VARCHAR NOT NULL,
    resource_id UBIGINT NOT NULL,
    attributes VARCHAR USING COMPRESSION zstd NOT NULL,  -- JSON object
    events VARCHAR USING COMPRESSION zstd NOT NULL,      -- JSON array of [time_ns, name, attributes]
    links VARCHAR NOT NULL,             -- JSON array of [trace_id, span_id]
    status UTINYINT NOT NULL,           -- 0 unset, 1 ok, 2 error
    status_message VARCHAR NOT NULL,
    received_ns BIGINT NOT NULL         -- 0 for files
);

CREATE TABLE records (
    kind VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    time_ns BIGINT NOT NULL,            -- 0 = the record carries no time
    trace_id VARCHAR NOT NULL,          -- '' = the record names none
    body VARCHAR NOT NULL,              -- JSON object
    received_ns BIGINT NOT NULL,
    source_hash UBIGINT NOT NULL        -- md5_number_lower('record:' || kind || ':' || key)
);

CREATE TABLE logs (
    time_ns BIGINT NOT NULL,
    severity VARCHAR NOT NULL,
    event_name VARCHAR NOT NULL,
    scope VARCHAR NOT NULL,
    trace_id VARCHAR NOT NULL,
    span_id VARCHAR NOT NULL,
    resource_id UBIGINT NOT NULL,
    attributes VARCHAR NOT NULL,        -- JSON object
    body VARCHAR NOT NULL,              -- JSON value
    received_ns BIGINT NOT NULL
);

CREATE TABLE points (
    name VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,              -- gauge, sum, histogram, exponential_histogram, summary
    unit VARCHAR NOT NULL,
    time_ns BIGINT NOT NULL,
    start_ns BIGINT NOT NULL,           -- 0 = unset
    scope VARCHAR NOT NULL,
    resource_id UBIGINT NOT NULL,
    attributes VARCHAR NOT NULL,        -- JSON object
    value_double DOUBLE,                -- exactly one of value_double and value_int for gauges and sums,
    value_int BIGINT,                   -- both NULL for the others
    distribution VARCHAR,               -- JSON object; NULL for gauges and sums
    temporality UTINYINT NOT NULL,      -- 0 unspecified, 1 delta, 2 cumulative
    monotonic BOOLEAN NOT NULL,
    received_ns BIGINT NOT NULL
);

CREATE TABLE source_keys (              -- join keys: what names one request in several traces
    source VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    scope VARCHAR NOT NULL,
    value VARCHAR NOT NULL,
    start_ns BIGINT NOT NULL,           -- 0 = no time is known: near to everything
    end_ns BIGINT NOT NULL,
    key_hash UBIGINT NOT NULL           -- md5_number_lower of kind, scope and value, a newline between
);

CREATE TABLE rejections (               -- what came in and was not kept, one row per (what, place, reason)
    what VARCHAR NOT NULL,
    place VARCHAR NOT NULL,             -- grpc, http or path:line
    reason VARCHAR NOT NULL,
    count BIGINT NOT NULL
);

CREATE TABLE repeats (                  -- what came in again, one row per kind of telemetry
    what VARCHAR NOT NULL,              -- span, record, log, point
    duplicates BIGINT NOT NULL,         -- same identity, same content
    conflicts BIGINT NOT NULL           -- same identity, other content
);
