-- What the lab's people have settled for machines of the pool, the head among them.

-- +goose Up

-- What a machine is shown as, where that is not its name.
CREATE TABLE machine_titles (
    machine TEXT PRIMARY KEY,      -- its name
    title   TEXT NOT NULL UNIQUE
) STRICT;

-- Why a launch runs on its machine: a JSON object, see notebooks.Placement.
ALTER TABLE launches ADD COLUMN placement TEXT NOT NULL DEFAULT '{}';
