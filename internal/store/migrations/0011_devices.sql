-- Programs that ask for an access token: somebody who is signed in confirms it in a browser. All times are UTC unix
-- milliseconds.

-- +goose Up

-- The program keeps the device code, this table only its SHA-256; the person sees and types the user code.
CREATE TABLE device_codes (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    code_hash  BLOB    NOT NULL UNIQUE CHECK (length(code_hash) = 32),
    user_code  TEXT    NOT NULL UNIQUE,
    client     TEXT    NOT NULL, -- as the program calls its machine
    remote     TEXT    NOT NULL, -- from where it asked
    scope      TEXT    NOT NULL CHECK (scope IN ('read', 'launch', 'full')),
    days       INTEGER NOT NULL, -- that the token lasts
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    polled_at  INTEGER,
    user_id    INTEGER REFERENCES users (id), -- who confirmed it; NULL while nobody has
    denied     INTEGER NOT NULL DEFAULT 0 CHECK (denied IN (0, 1))
) STRICT;
CREATE INDEX device_codes_user ON device_codes (user_id) WHERE user_id IS NOT NULL;

-- Whatever revokes all of somebody's tokens, or ends their account, ends what was confirmed and not fetched yet.
-- +goose StatementBegin
CREATE TRIGGER device_codes_end AFTER UPDATE OF suspended_at, removed_at, password_hash ON users
WHEN NEW.suspended_at IS NOT NULL OR NEW.removed_at IS NOT NULL OR NEW.password_hash <> OLD.password_hash
BEGIN
    DELETE FROM device_codes WHERE user_id = NEW.id;
END;
-- +goose StatementEnd
