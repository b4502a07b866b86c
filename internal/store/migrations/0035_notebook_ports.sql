-- Notebook ports: each person's notebooks are a web origin of their own.

-- +goose Up

-- A row is never deleted, so a port never belongs to a second person: browsers keep what an
-- origin stored in them. A person has several rows where notebookPorts has changed.
CREATE TABLE notebook_ports (
    port        INTEGER PRIMARY KEY CHECK (port BETWEEN 1 AND 65535), -- the head's port
    user_id     INTEGER NOT NULL REFERENCES users (id),
    assigned_at INTEGER NOT NULL -- UTC unix milliseconds
) STRICT;
CREATE INDEX notebook_ports_user ON notebook_ports (user_id);
