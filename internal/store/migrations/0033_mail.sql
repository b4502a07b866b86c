-- Mail: what is to be sent, what people want to get, and what they were told. All times are UTC unix milliseconds.

-- +goose Up

-- The outbox. A mail waits until a mail server has taken it, or until that is given up; its text, which may hold a link
-- that is a secret, goes with that.
CREATE TABLE mails (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT    NOT NULL UNIQUE, -- the same over all tries
    kind       TEXT    NOT NULL,
    user_id    INTEGER REFERENCES users (id), -- whom it is for; NULL for an address without an account
    asked_by   TEXT    NOT NULL DEFAULT '',   -- the handle of who made the lab write to that address, or root; '' for the lab itself
    name       TEXT    NOT NULL DEFAULT '',
    address    TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('waiting', 'sent', 'failed')),
    created_at INTEGER NOT NULL,
    next_at    INTEGER NOT NULL, -- when it is tried again
    tries      INTEGER NOT NULL DEFAULT 0, -- that a mail server has answered
    problem    TEXT    NOT NULL DEFAULT '', -- what came of the latest, as a sentence
    ended_at   INTEGER NOT NULL DEFAULT 0  -- when it was sent or given up
) STRICT;
CREATE INDEX mails_waiting ON mails (next_at) WHERE state = 'waiting';
CREATE INDEX mails_address ON mails (address, created_at);
CREATE INDEX mails_user ON mails (user_id, created_at);

-- What people have chosen; what they have not is as the lab has it.
CREATE TABLE mail_choices (
    user_id INTEGER NOT NULL REFERENCES users (id),
    kind    TEXT    NOT NULL,
    wanted  INTEGER NOT NULL CHECK (wanted IN (0, 1)),
    PRIMARY KEY (user_id, kind)
) STRICT, WITHOUT ROWID;

-- What people were told of, for as long as it lasts and a while longer, so that nobody is told twice.
CREATE TABLE mail_told (
    user_id INTEGER NOT NULL REFERENCES users (id),
    key     TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (user_id, key)
) STRICT, WITHOUT ROWID;
