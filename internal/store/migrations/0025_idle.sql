-- GPUs that nobody uses, and what became of them. All times are UTC unix milliseconds.

-- +goose Up

-- What is known of each running notebook. Time in which it could not be watched, or its machine slept, is taken out of
-- every time in a row: they move with it.
CREATE TABLE idle (
    launch_id     INTEGER PRIMARY KEY REFERENCES launches (id),
    looked_at     INTEGER NOT NULL, -- when it was looked at last
    began_at      INTEGER NOT NULL, -- when it was ready
    gpu_at        INTEGER NOT NULL, -- when each was seen at work last; not before began_at
    cpu_at        INTEGER NOT NULL,
    kernel_at     INTEGER NOT NULL,
    terminal_at   INTEGER NOT NULL,
    network_at    INTEGER NOT NULL,
    state         TEXT    NOT NULL DEFAULT 'free' CHECK (state IN ('free', 'warned', 'stopped')),
    cause         TEXT    NOT NULL DEFAULT '' CHECK (cause IN ('', 'idle', 'age', 'freed')),
    reason        TEXT    NOT NULL DEFAULT '', -- why it was stopped, for its owner
    warned_at     INTEGER NOT NULL DEFAULT 0,
    ends_at       INTEGER NOT NULL DEFAULT 0,  -- when it is stopped unless somebody needs it
    until         INTEGER NOT NULL DEFAULT 0,  -- until when it was extended
    extensions    INTEGER NOT NULL DEFAULT 0,
    wanted_launch INTEGER NOT NULL DEFAULT 0,  -- the launch that waits for it; 0 for none
    wanted_by     TEXT    NOT NULL DEFAULT ''
) STRICT;

-- What was taken back, from whom and for whom. Kept for good.
CREATE TABLE reclaims (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL,
    launch_id     INTEGER NOT NULL UNIQUE REFERENCES launches (id),
    user_id       INTEGER NOT NULL REFERENCES users (id),
    handle        TEXT    NOT NULL,
    profile       TEXT    NOT NULL,
    node          TEXT    NOT NULL,
    gpus          INTEGER NOT NULL,
    cause         TEXT    NOT NULL CHECK (cause IN ('idle', 'age', 'freed')),
    idle_ms       INTEGER NOT NULL, -- for how long it had not been used
    ran_ms        INTEGER NOT NULL,
    wanted_launch INTEGER NOT NULL, -- 0 for nobody's
    wanted_by     TEXT    NOT NULL,
    by            TEXT    NOT NULL  -- a handle, root, or system
) STRICT;
CREATE INDEX reclaims_wanted ON reclaims (wanted_launch);
CREATE INDEX reclaims_user ON reclaims (user_id, at);
