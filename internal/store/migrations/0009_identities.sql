-- Accounts at outside identity providers with which people sign in. All times are UTC unix milliseconds.

-- +goose Up

CREATE TABLE identities (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id   INTEGER NOT NULL REFERENCES users (id),
    provider  TEXT    NOT NULL, -- its name in the configuration when it was last used
    realm     TEXT    NOT NULL, -- within it a subject is never given to somebody else: an issuer, for example
    subject   TEXT    NOT NULL CHECK (subject <> ''),
    username  TEXT    NOT NULL DEFAULT '', -- what they are called there, for people to read
    role      TEXT CHECK (role IN ('admin', 'lead', 'member', 'guest')), -- what the rules gave last; NULL = nothing yet
    linked_at INTEGER NOT NULL,
    used_at   INTEGER, -- the last sign-in with it
    UNIQUE (realm, subject),
    UNIQUE (user_id, realm)
) STRICT;

-- The groups that somebody is in because of the rules, and not by hand.
CREATE TABLE identity_groups (
    identity_id INTEGER NOT NULL REFERENCES identities (id) ON DELETE CASCADE,
    group_id    INTEGER NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    lead        INTEGER NOT NULL CHECK (lead IN (0, 1)),
    PRIMARY KEY (identity_id, group_id)
) STRICT, WITHOUT ROWID;
