-- Groups with leads, the ways into the lab, and accounts that can come back.
-- All times are UTC unix milliseconds.

-- +goose Up

-- A removed account keeps its personal data and home until it is purged. Those removed before there was
-- this column lost their data at once, and were told that their home stays.
ALTER TABLE users ADD COLUMN purged_at INTEGER;
ALTER TABLE users ADD COLUMN purge_home INTEGER NOT NULL DEFAULT 0 CHECK (purge_home IN (0, 1)); -- 1 = still to be deleted
UPDATE users SET purged_at = removed_at WHERE removed_at IS NOT NULL;

ALTER TABLE users ADD COLUMN signed_in_at INTEGER; -- the last time; NULL = never, or not known
UPDATE users SET signed_in_at = (SELECT max(created_at) FROM sessions WHERE user_id = users.id);

-- Handle, shown name and e-mail address in plain small letters, to search in (see searchable in package users).
ALTER TABLE users ADD COLUMN search TEXT NOT NULL DEFAULT '';
UPDATE users SET search = lower(handle || ' ' || name || ' ' || email);

-- The number that somebody had on the machine before there was gpulab, in place of the account's own.
ALTER TABLE users ADD COLUMN kept_uid INTEGER CHECK (kept_uid BETWEEN 1000 AND 19998);
CREATE UNIQUE INDEX users_kept_uid ON users (kept_uid) WHERE kept_uid IS NOT NULL;

-- +goose StatementBegin
CREATE TRIGGER users_keep_kept_uid BEFORE UPDATE OF kept_uid ON users
WHEN NEW.kept_uid IS NOT OLD.kept_uid
BEGIN
    SELECT RAISE(ABORT, 'the uid of a user never changes');
END;
-- +goose StatementEnd

CREATE TABLE groups (
    id         INTEGER PRIMARY KEY AUTOINCREMENT, -- never given again: folders are named by it
    name       TEXT    NOT NULL UNIQUE,
    title      TEXT    NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE group_members (
    group_id INTEGER NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    user_id  INTEGER NOT NULL REFERENCES users (id),
    lead     INTEGER NOT NULL DEFAULT 0 CHECK (lead IN (0, 1)),
    added_at INTEGER NOT NULL,
    PRIMARY KEY (group_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX group_members_user ON group_members (user_id);

-- A link with which several people can make accounts of their own.
CREATE TABLE invitations (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash BLOB    NOT NULL UNIQUE,
    role       TEXT    NOT NULL CHECK (role IN ('admin', 'lead', 'member', 'guest')),
    group_id   INTEGER REFERENCES groups (id) ON DELETE CASCADE,
    note       TEXT    NOT NULL DEFAULT '',
    uses       INTEGER NOT NULL DEFAULT 0 CHECK (uses <= max_uses),
    max_uses   INTEGER NOT NULL CHECK (max_uses > 0),
    created_by TEXT    NOT NULL, -- a handle, or 'root'
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;

-- Somebody who asked for an account. The row goes when an admin has decided.
CREATE TABLE signups (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    handle        TEXT    NOT NULL UNIQUE, -- kept for them until then
    wanted        TEXT    NOT NULL, -- the handle they asked for; it may have been taken
    name          TEXT    NOT NULL,
    email         TEXT    NOT NULL DEFAULT '',
    note          TEXT    NOT NULL DEFAULT '', -- why they ask
    password_hash TEXT    NOT NULL, -- argon2id
    remote        TEXT    NOT NULL DEFAULT '',
    requested_at  INTEGER NOT NULL
) STRICT;
