-- Machines of the pool that take no new work, the head among them. All times are UTC unix milliseconds.

-- +goose Up

CREATE TABLE cordons (
    machine  TEXT    PRIMARY KEY,  -- its name
    since    INTEGER NOT NULL,
    by       TEXT    NOT NULL,     -- a handle, or root
    reason   TEXT    NOT NULL,     -- for everybody to read, '' for none
    empty_at INTEGER               -- when notebooks that are left there end; NULL where they may stay
) STRICT;
