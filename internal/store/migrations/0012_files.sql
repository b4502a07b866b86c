-- Files are brought in and out over SFTP: with SSH keys, and with access tokens that are for nothing else.
-- All times are UTC unix milliseconds.

-- +goose Up

CREATE TABLE ssh_keys (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id      INTEGER NOT NULL REFERENCES users (id),
    fingerprint  BLOB    NOT NULL CHECK (length(fingerprint) = 32), -- SHA-256 of the public key
    key          TEXT    NOT NULL, -- as in a file authorized_keys, without options and comment
    name         TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    last_remote  TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE UNIQUE INDEX ssh_keys_once ON ssh_keys (user_id, fingerprint);

-- However an account is removed: its keys go with it, and do not come back.
-- +goose StatementBegin
CREATE TRIGGER ssh_keys_end AFTER UPDATE OF removed_at ON users
WHEN NEW.removed_at IS NOT NULL
BEGIN
    DELETE FROM ssh_keys WHERE user_id = NEW.id;
END;
-- +goose StatementEnd

-- A new scope is a new CHECK, which SQLite takes in a new table only. Numbers of tokens are not given again.
DROP TRIGGER api_tokens_end;
CREATE TABLE api_tokens_new (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash   BLOB    NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    user_id      INTEGER NOT NULL REFERENCES users (id),
    name         TEXT    NOT NULL,
    scope        TEXT    NOT NULL CHECK (scope IN ('files', 'read', 'launch', 'full')),
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    last_remote  TEXT    NOT NULL DEFAULT ''
) STRICT;
INSERT INTO api_tokens_new (id, token_hash, user_id, name, scope, created_at, expires_at, last_used_at, last_remote)
    SELECT id, token_hash, user_id, name, scope, created_at, expires_at, last_used_at, last_remote FROM api_tokens;
DELETE FROM sqlite_sequence WHERE name = 'api_tokens_new';
INSERT INTO sqlite_sequence (name, seq) SELECT 'api_tokens_new', seq FROM sqlite_sequence WHERE name = 'api_tokens';
DROP TABLE api_tokens;
ALTER TABLE api_tokens_new RENAME TO api_tokens;
CREATE INDEX api_tokens_user ON api_tokens (user_id);

-- +goose StatementBegin
CREATE TRIGGER api_tokens_end AFTER UPDATE OF suspended_at, removed_at ON users
WHEN NEW.suspended_at IS NOT NULL OR NEW.removed_at IS NOT NULL
BEGIN
    DELETE FROM api_tokens WHERE user_id = NEW.id;
END;
-- +goose StatementEnd
