-- Launches of notebooks: one row from the click to the end, with the reason for every wait.
-- All times are UTC unix milliseconds.

-- +goose Up
CREATE TABLE launches (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id      INTEGER NOT NULL REFERENCES users (id),
    handle       TEXT    NOT NULL,
    name         TEXT    NOT NULL, -- the hub's server name
    title        TEXT    NOT NULL DEFAULT '',
    profile      TEXT    NOT NULL,
    gpus         INTEGER NOT NULL DEFAULT 0 CHECK (gpus >= 0),
    state        TEXT    NOT NULL CHECK (state IN ('waiting', 'starting', 'running', 'stopping', 'ended')),
    reason       TEXT    NOT NULL DEFAULT '', -- plain words for the person
    end_code     TEXT    NOT NULL DEFAULT '', -- for programs, once ended
    requested_at INTEGER NOT NULL,
    started_at   INTEGER,
    ready_at     INTEGER,
    ended_at     INTEGER,
    node         TEXT    NOT NULL DEFAULT '',
    pod          TEXT    NOT NULL DEFAULT '',
    gpu_uuids    TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(gpu_uuids))
) STRICT;

-- A server of a user runs once; its name is free again after the end.
CREATE UNIQUE INDEX launches_active_name ON launches (user_id, name) WHERE state <> 'ended';
CREATE INDEX launches_active ON launches (state, requested_at) WHERE state <> 'ended';
CREATE INDEX launches_user ON launches (user_id, requested_at);
