-- People: accounts, their sessions, one-time links, what was done by whom, and settings of the lab.
-- All times are UTC unix milliseconds.

-- +goose Up

-- A row is never deleted: a removed account stays behind as a tombstone, so that its id (the name of
-- the home folder), its handle and its UID are never given to anybody else.
CREATE TABLE users (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    handle        TEXT    NOT NULL UNIQUE,
    name          TEXT    NOT NULL DEFAULT '',
    email         TEXT    NOT NULL DEFAULT '',
    role          TEXT    NOT NULL CHECK (role IN ('admin', 'lead', 'member', 'guest')),
    uid           INTEGER NOT NULL UNIQUE CHECK (uid BETWEEN 20000 AND 59999),
    password_hash TEXT    NOT NULL DEFAULT '', -- argon2id; '' = cannot sign in with a password
    created_at    INTEGER NOT NULL,
    suspended_at  INTEGER,
    removed_at    INTEGER
) STRICT;

-- +goose StatementBegin
CREATE TRIGGER users_keep_identity BEFORE UPDATE OF id, handle, uid ON users
WHEN NEW.id <> OLD.id OR NEW.handle <> OLD.handle OR NEW.uid <> OLD.uid
BEGIN
    SELECT RAISE(ABORT, 'id, handle and uid of a user never change');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER users_keep_tombstones BEFORE DELETE ON users
BEGIN
    SELECT RAISE(ABORT, 'users are never deleted, only marked as removed');
END;
-- +goose StatementEnd

-- The cookie holds the token, this table only its SHA-256: a stolen copy of it signs nobody in.
CREATE TABLE sessions (
    id           TEXT    PRIMARY KEY,
    token_hash   BLOB    NOT NULL UNIQUE,
    user_id      INTEGER NOT NULL REFERENCES users (id),
    created_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    remote       TEXT    NOT NULL DEFAULT '',
    user_agent   TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX sessions_user ON sessions (user_id);

CREATE TABLE links (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash BLOB    NOT NULL UNIQUE,
    purpose    TEXT    NOT NULL CHECK (purpose IN ('admin-setup', 'password')),
    user_id    INTEGER REFERENCES users (id), -- whose password; NULL for admin-setup
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at    INTEGER,
    CHECK ((purpose = 'password') = (user_id IS NOT NULL))
) STRICT;

CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    actor  TEXT    NOT NULL, -- a handle, or 'system', or 'root' for the command line on the head
    action TEXT    NOT NULL,
    target TEXT    NOT NULL DEFAULT '',
    detail TEXT    NOT NULL DEFAULT '',
    remote TEXT    NOT NULL DEFAULT ''
) STRICT;

-- +goose StatementBegin
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
-- +goose StatementEnd

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
