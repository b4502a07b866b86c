-- +goose Up
-- A machine that slept is an event too. Which kinds there are is the writer's matter: SQLite cannot change a condition of
-- a table without making it anew.
CREATE TABLE events_new (
    id       INTEGER PRIMARY KEY,
    node     TEXT    NOT NULL,
    gpu      TEXT    NOT NULL, -- its UUID; '' for an event of the node
    number   INTEGER NOT NULL, -- on its machine; -1 for an event of the node
    kind     TEXT    NOT NULL,
    xid      INTEGER NOT NULL DEFAULT 0, -- for kind 'xid'
    minute   INTEGER NOT NULL,
    first    INTEGER NOT NULL, -- UTC unix milliseconds
    last     INTEGER NOT NULL,
    count    INTEGER NOT NULL CHECK (count > 0),
    detail   TEXT    NOT NULL DEFAULT '',
    UNIQUE (node, gpu, kind, xid, minute)
) STRICT;
INSERT INTO events_new SELECT id, node, gpu, number, kind, xid, minute, first, last, count, detail FROM events;
DROP TABLE events;
ALTER TABLE events_new RENAME TO events;
CREATE INDEX events_last ON events (last);
CREATE INDEX events_gpu ON events (gpu, last);
