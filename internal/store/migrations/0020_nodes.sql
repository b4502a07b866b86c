-- The machines of the pool besides its head, and the codes with which machines join. All times are UTC unix milliseconds.

-- +goose Up

-- A row stays when its machine is removed: what shows its certificate then is told so.
CREATE TABLE nodes (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT    NOT NULL,
    key_hash   BLOB    NOT NULL UNIQUE CHECK (length(key_hash) = 32), -- SHA-256 of its public key
    machine    TEXT    NOT NULL, -- SHA-256 of its machine-id, which copies of a disk have in common
    address    TEXT    NOT NULL, -- where it was seen last
    version    TEXT    NOT NULL, -- its gpulab's
    gpus       TEXT    NOT NULL CHECK (gpus IN ('real', 'simulated', 'none')),
    joined_at  INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    removed_at INTEGER
) STRICT;
CREATE UNIQUE INDEX nodes_name ON nodes (name) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX nodes_machine ON nodes (machine) WHERE removed_at IS NULL;

-- A code holds the secret, this table only its SHA-256. It is used once; the machine that used it may finish with it.
CREATE TABLE join_codes (
    id          BLOB    PRIMARY KEY CHECK (length(id) = 8),
    secret_hash BLOB    NOT NULL CHECK (length(secret_hash) = 32),
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    used_at     INTEGER,
    node_id     INTEGER REFERENCES nodes (id),
    CHECK ((used_at IS NULL) = (node_id IS NULL))
) STRICT;
