-- What the lab's people have settled for machines of the pool, the head among them.

-- +goose Up

-- What a machine is shown as, where that is not its name.
CREATE TABLE machine_titles (
    machine TEXT PRIMARY KEY,      -- its name
    title   TEXT NOT NULL UNIQUE
) STRICT;

-- Why a launch runs on its machine: a JSON object, see notebooks.Placement.
ALTER TABLE launches ADD COLUMN placement TEXT NOT NULL DEFAULT '{}';

-- Machines that are for some people only: who has one of the roles, or is in one of the groups. One whose groups are all
-- gone is for nobody until somebody says otherwise.
CREATE TABLE machine_limits (
    machine TEXT PRIMARY KEY,      -- its name
    roles   TEXT NOT NULL          -- with spaces between
) STRICT;
CREATE TABLE machine_groups (
    machine  TEXT    NOT NULL REFERENCES machine_limits (machine) ON DELETE CASCADE,
    group_id INTEGER NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    PRIMARY KEY (machine, group_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX machine_groups_group ON machine_groups (group_id);
