-- The audit log becomes a chain of hashes that forgets what is older than 400 days, and people get access
-- tokens. All times are UTC unix milliseconds.

-- +goose Up

-- SHA-256 over the hash before it and the entry (package users says how). NULL only in entries from before
-- there was a chain, until gpulab starts for the first time.
ALTER TABLE audit ADD COLUMN hash BLOB CHECK (hash IS NULL OR length(hash) = 32);

CREATE INDEX audit_unchained ON audit (id) WHERE hash IS NULL;
CREATE INDEX audit_actor ON audit (actor);
CREATE INDEX audit_target ON audit (target) WHERE target <> '';

-- The last entry that was forgotten; the oldest one that is left builds on its hash.
CREATE TABLE audit_anchor (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    id   INTEGER NOT NULL,
    at   INTEGER NOT NULL,
    hash BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;
INSERT INTO audit_anchor VALUES (1, 0, 0, zeroblob(32));

DROP TRIGGER audit_no_update;
DROP TRIGGER audit_no_delete;

-- An entry from before the chain gets its hash once. Nothing else in it changes, then or later.
-- +goose StatementBegin
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
WHEN OLD.hash IS NOT NULL OR NEW.hash IS NULL OR NEW.id <> OLD.id OR NEW.at <> OLD.at OR NEW.actor <> OLD.actor
    OR NEW.action <> OLD.action OR NEW.target <> OLD.target OR NEW.detail <> OLD.detail OR NEW.remote <> OLD.remote
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
-- +goose StatementEnd

-- Only up to the anchor, which moves over old entries alone.
-- +goose StatementBegin
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
WHEN OLD.id > (SELECT id FROM audit_anchor)
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
-- +goose StatementEnd

-- Without it, INSERT OR REPLACE would change an entry: that fires no trigger for the row it replaces.
-- +goose StatementBegin
CREATE TRIGGER audit_append BEFORE INSERT ON audit
WHEN NEW.hash IS NULL OR NEW.id <= (SELECT id FROM audit_anchor) OR NEW.id <= (SELECT max(id) FROM audit)
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only: an entry comes after all others and has a hash');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER audit_anchor_moves BEFORE UPDATE ON audit_anchor
WHEN NEW.id <= OLD.id
    OR NOT EXISTS (SELECT 1 FROM audit WHERE id = NEW.id AND at = NEW.at AND hash = NEW.hash)
    OR EXISTS (SELECT 1 FROM audit WHERE id <= NEW.id AND (hash IS NULL OR at >= (unixepoch() - 400 * 86400) * 1000))
BEGIN
    SELECT RAISE(ABORT, 'the audit log is kept for 400 days');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER audit_anchor_stays BEFORE DELETE ON audit_anchor
BEGIN
    SELECT RAISE(ABORT, 'the audit log has one anchor');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER audit_anchor_once BEFORE INSERT ON audit_anchor
BEGIN
    SELECT RAISE(ABORT, 'the audit log has one anchor');
END;
-- +goose StatementEnd

-- The person keeps the token, this table only its SHA-256.
CREATE TABLE api_tokens (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash   BLOB    NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    user_id      INTEGER NOT NULL REFERENCES users (id),
    name         TEXT    NOT NULL,
    scope        TEXT    NOT NULL CHECK (scope IN ('read', 'launch', 'full')),
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    last_remote  TEXT    NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX api_tokens_user ON api_tokens (user_id);

-- Whoever suspends or removes an account, and however: its tokens end with it.
-- +goose StatementBegin
CREATE TRIGGER api_tokens_end AFTER UPDATE OF suspended_at, removed_at ON users
WHEN NEW.suspended_at IS NOT NULL OR NEW.removed_at IS NOT NULL
BEGIN
    DELETE FROM api_tokens WHERE user_id = NEW.id;
END;
-- +goose StatementEnd
