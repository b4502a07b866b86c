-- What GPUs did over time, and what happened to them. Times are UTC unix seconds: rows are many, so
-- they are small. A row stands for one GPU and the time from slot to the next slot of its table. A
-- mean is a sum with the number of readings in it, so that rows of the same slot add up exactly; what
-- was never read in a slot is NULL, or a sum of none.

-- +goose Up
CREATE TABLE gpus (
    id   INTEGER PRIMARY KEY,
    uuid TEXT    NOT NULL UNIQUE
) STRICT;

-- Ten seconds each, kept for 25 hours.
CREATE TABLE readings_10s (
    gpu             INTEGER NOT NULL REFERENCES gpus (id),
    slot            INTEGER NOT NULL,
    use_sum         REAL    NOT NULL, -- percent
    use_n           INTEGER NOT NULL,
    use_max         REAL,
    memory_max      REAL,             -- bytes
    power_sum       REAL    NOT NULL, -- milliwatts
    power_n         INTEGER NOT NULL,
    power_max       REAL,
    temperature_max REAL,             -- degrees Celsius
    clock_sum       REAL    NOT NULL, -- MHz of the multiprocessors
    clock_n         INTEGER NOT NULL,
    PRIMARY KEY (gpu, slot)
) STRICT, WITHOUT ROWID;

-- Five minutes each, kept for 366 days.
CREATE TABLE readings_5min (
    gpu             INTEGER NOT NULL REFERENCES gpus (id),
    slot            INTEGER NOT NULL,
    use_sum         REAL    NOT NULL,
    use_n           INTEGER NOT NULL,
    use_max         REAL,
    memory_max      REAL,
    power_sum       REAL    NOT NULL,
    power_n         INTEGER NOT NULL,
    power_max       REAL,
    temperature_max REAL,
    clock_sum       REAL    NOT NULL,
    clock_n         INTEGER NOT NULL,
    PRIMARY KEY (gpu, slot)
) STRICT, WITHOUT ROWID;

-- Equal events of one minute are one row with their number. The newest 20,000 are kept, for 366 days.
CREATE TABLE events (
    id       INTEGER PRIMARY KEY,
    node     TEXT    NOT NULL,
    gpu      TEXT    NOT NULL, -- its UUID; '' for an event of the node
    number   INTEGER NOT NULL, -- on its machine; -1 for an event of the node
    kind     TEXT    NOT NULL CHECK (kind IN ('xid', 'gpu-lost', 'gpu-back', 'probe-down', 'probe-up')),
    xid      INTEGER NOT NULL DEFAULT 0, -- for kind 'xid'
    minute   INTEGER NOT NULL,
    first    INTEGER NOT NULL, -- UTC unix milliseconds
    last     INTEGER NOT NULL,
    count    INTEGER NOT NULL CHECK (count > 0),
    detail   TEXT    NOT NULL DEFAULT '',
    UNIQUE (node, gpu, kind, xid, minute)
) STRICT;
CREATE INDEX events_last ON events (last);
CREATE INDEX events_gpu ON events (gpu, last);
