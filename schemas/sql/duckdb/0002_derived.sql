-- Requests and all that belongs to them: a pure function of the raw tables, rebuilt by `pdtrace rederive`.
-- One row per request, lists nested in it, so that a request is replaced by one DELETE and one INSERT; the views below
-- give every list as a table of its own. NULL is unknown or absent, never 0. Times are integer Unix nanoseconds.

CREATE TABLE requests (
    uid VARCHAR NOT NULL,
    request_id VARCHAR NOT NULL,
    aliases VARCHAR[] NOT NULL,
    trace_ids VARCHAR[] NOT NULL,
    sources VARCHAR[] NOT NULL,
    dialects VARCHAR[] NOT NULL,
    model VARCHAR,
    run VARCHAR,
    outcome VARCHAR NOT NULL,           -- pdtrace/outcomes.py
    outcome_text VARCHAR NOT NULL,
    mode VARCHAR NOT NULL,
    t0_ns BIGINT NOT NULL,              -- window start, on the request's clock
    t1_ns BIGINT,                       -- first user-visible token; NULL = there was none
    end_ns BIGINT,                      -- NULL while open
    last_ns BIGINT NOT NULL,
    received_ns BIGINT NOT NULL,        -- 0 for files
    clock VARCHAR NOT NULL,
    ttft_ns BIGINT,                     -- NULL without a first token; never 0 for it
    ttft_basis VARCHAR,
    prefill_worker VARCHAR,
    decode_worker VARCHAR,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cached_tokens BIGINT,
    attempts BIGINT NOT NULL,
    stitched_by VARCHAR NOT NULL,
    http_status BIGINT,
    wasted_ns BIGINT NOT NULL,
    wasted_gpu_seconds DOUBLE,
    span_count BIGINT NOT NULL,
    waiting_in VARCHAR,                 -- the stage charged last, of a request without a first token
    -- charged time inside the window, per stage; NULL = the stage does not occur; they sum to ttft_ns exactly
    section_prefill_ns BIGINT,
    section_recompute_ns BIGINT,
    section_handoff_ns BIGINT,
    section_first_token_ns BIGINT,
    section_prefill_queue_ns BIGINT,
    section_bootstrap_ns BIGINT,
    section_prefill_opaque_ns BIGINT,
    section_decode_queue_ns BIGINT,
    section_decode_opaque_ns BIGINT,
    section_router_queue_ns BIGINT,
    section_route_ns BIGINT,
    section_ingress_ns BIGINT,
    section_relay_ns BIGINT,
    section_egress_ns BIGINT,
    section_unattributed_ns BIGINT,
    -- time of the stage's activities inside the window that was charged to another stage
    hidden_prefill_ns BIGINT,
    hidden_recompute_ns BIGINT,
    hidden_handoff_ns BIGINT,
    hidden_first_token_ns BIGINT,
    hidden_prefill_queue_ns BIGINT,
    hidden_bootstrap_ns BIGINT,
    hidden_decode_queue_ns BIGINT,
    hidden_router_queue_ns BIGINT,
    hidden_route_ns BIGINT,
    -- how much sooner the first token would come without this stage's work; NULL = absent, or in saving_unknown
    saving_prefill_ns BIGINT,
    saving_recompute_ns BIGINT,
    saving_handoff_ns BIGINT,
    saving_first_token_ns BIGINT,
    saving_prefill_queue_ns BIGINT,
    saving_bootstrap_ns BIGINT,
    saving_prefill_opaque_ns BIGINT,
    saving_decode_queue_ns BIGINT,
    saving_decode_opaque_ns BIGINT,
    saving_router_queue_ns BIGINT,
    saving_route_ns BIGINT,
    saving_ingress_ns BIGINT,
    saving_relay_ns BIGINT,
    saving_egress_ns BIGINT,
    saving_unattributed_ns BIGINT,
    saving_unknown VARCHAR[] NOT NULL,  -- stages that took time and of which no saving can be told
    sections_to_end VARCHAR,            -- JSON {stage: ns} of a request without a first token; else NULL
    ttft_claims STRUCT("name" VARCHAR, ttft_ns BIGINT, measures VARCHAR)[] NOT NULL,
    warnings STRUCT(code VARCHAR, "text" VARCHAR)[] NOT NULL,
    offsets STRUCT(clock VARCHAR, reference VARCHAR, low_ns BIGINT, high_ns BIGINT, applied_ns BIGINT)[] NOT NULL,
    -- JSON (pdtrace/store/details.py): sections, activities, evidence, token times; only ever read for single requests.
    -- One text costs about half of nested columns to write; with zstd it takes two thirds of their space.
    details VARCHAR USING COMPRESSION zstd NOT NULL
);

CREATE TABLE request_sources (          -- which requests a trace or a record went into
    uid VARCHAR NOT NULL,
    t0_ns BIGINT NOT NULL,
    source_hash UBIGINT NOT NULL,       -- md5_number_lower(source): four times cheaper to scan than the text
    source VARCHAR NOT NULL
);

CREATE VIEW sections AS
    SELECT uid, t0_ns, position, to_end, section ->> 0 AS stage, CAST(section ->> 1 AS BIGINT) AS start_ns,
        CAST(section ->> 2 AS BIGINT) AS end_ns
    FROM (
        SELECT uid, t0_ns, to_end, generate_subscripts(list, 1) AS position, unnest(list) AS section
        FROM (
            SELECT uid, t0_ns, false AS to_end, CAST(details -> 'sections' AS JSON[]) AS list FROM requests
            UNION ALL
            SELECT uid, t0_ns, true, CAST(details -> 'sections_to_end' AS JSON[]) FROM requests
        )
    );
CREATE VIEW activities AS
    SELECT uid, t0_ns, position, activity ->> 0 AS stage, CAST(activity ->> 1 AS BIGINT) AS start_ns,
        CAST(activity ->> 2 AS BIGINT) AS end_ns, activity ->> 3 AS worker, activity ->> 4 AS "role",
        CAST(activity ->> 5 AS INTEGER) AS attempt, activity ->> 6 AS clock, activity ->> 7 AS span_id,
        activity ->> 8 AS dialect, activity ->> 9 AS rank, activity ->> 10 AS chunk, activity ->> 11 AS side,
        CAST(activity ->> 12 AS BOOLEAN) AS failed, CAST(activity ->> 13 AS BOOLEAN) AS hedge,
        CAST(activity ->> 14 AS INTEGER) AS gpus, activity -> 15 AS detail
    FROM (
        SELECT uid, t0_ns, generate_subscripts(list, 1) AS position, unnest(list) AS activity
        FROM (SELECT uid, t0_ns, CAST(details -> 'activities' AS JSON[]) AS list FROM requests)
    );
CREATE VIEW ttft_claims AS
    SELECT uid, t0_ns, unnest(ttft_claims, recursive := true) FROM requests;
CREATE VIEW evidence AS
    SELECT uid, t0_ns, fact ->> 0 AS "name", fact -> 1 AS "value", fact ->> 2 AS unit, fact ->> 3 AS "text",
        fact ->> 4 AS span_id
    FROM (SELECT uid, t0_ns, unnest(CAST(details -> 'evidence' AS JSON[])) AS fact FROM requests);
CREATE VIEW warnings AS
    SELECT uid, t0_ns, unnest(warnings, recursive := true) FROM requests;
CREATE VIEW clock_offsets AS
    SELECT uid, t0_ns, unnest(offsets, recursive := true) FROM requests;
CREATE VIEW token_times AS
    SELECT uid, t0_ns, generate_subscripts(list, 1) AS position, unnest(list) AS token_ns
    FROM (SELECT uid, t0_ns, CAST(details -> 'token_times_ns' AS BIGINT[]) AS list FROM requests);
