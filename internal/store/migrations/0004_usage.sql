-- Who used which GPU, hour by hour. Rows are only ever added to, and kept for good. Hours are the
-- hours of UTC, as unix seconds; durations are in seconds.

-- +goose Up

-- A card of a node. One that was simulated is another one than a real one, so that their hours never
-- mix. name and number are as last seen.
CREATE TABLE usage_gpus (
    id        INTEGER PRIMARY KEY,
    uuid      TEXT    NOT NULL,
    node      TEXT    NOT NULL,
    simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
    number    INTEGER NOT NULL, -- on its node
    name      TEXT    NOT NULL,
    UNIQUE (uuid, node, simulated)
) STRICT;

-- One row for what somebody had of a card in an hour, and one of kind 'card' for the card itself: its
-- energy and memory are the sums of the others; its held time is the time in which anybody held it.
CREATE TABLE usage (
    hour        INTEGER NOT NULL,
    gpu         INTEGER NOT NULL REFERENCES usage_gpus (id),
    kind        TEXT    NOT NULL CHECK (kind IN ('card', 'user', 'unix', 'pod', 'unattributed')),
    name        TEXT    NOT NULL, -- handle, Unix user, namespace/pod; '' for a card and what is nobody's
    watched     REAL    NOT NULL, -- the card was looked at; of kind 'card' alone
    held        REAL    NOT NULL,
    busy        REAL    NOT NULL, -- part of held
    unknown     REAL    NOT NULL, -- part of held: whether it was used cannot be told
    compute     REAL    NOT NULL, -- seconds of the whole card's time
    compute_for REAL    NOT NULL, -- how long that was known, as with the next two
    memory      REAL    NOT NULL, -- bytes times seconds
    memory_for  REAL    NOT NULL,
    energy      REAL    NOT NULL, -- joules
    energy_for  REAL    NOT NULL,
    PRIMARY KEY (hour, gpu, kind, name),
    CHECK ((name = '') = (kind IN ('card', 'unattributed')))
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_name ON usage (kind, name, hour);
