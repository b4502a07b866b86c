-- How much of the lab's machines somebody may use. All times are UTC unix milliseconds.

-- +goose Up

-- One limit for everybody, a role, a group or one person; of those that apply, the strictest holds.
CREATE TABLE quotas (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    role     TEXT CHECK (role IN ('admin', 'lead', 'member', 'guest')),
    group_id INTEGER REFERENCES groups (id) ON DELETE CASCADE,
    user_id  INTEGER REFERENCES users (id),
    kind     TEXT    NOT NULL,
    model    TEXT    NOT NULL DEFAULT '', -- of GPUs; '' = of any
    value    REAL    NOT NULL CHECK (value >= 0),
    CHECK ((role IS NOT NULL) + (group_id IS NOT NULL) + (user_id IS NOT NULL) <= 1)
) STRICT;
CREATE UNIQUE INDEX quotas_one ON quotas (coalesce(role, ''), coalesce(group_id, 0), coalesce(user_id, 0), kind, model);

-- More than that, for one person and a while.
CREATE TABLE quota_grants (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id    INTEGER NOT NULL REFERENCES users (id),
    kind       TEXT    NOT NULL,
    model      TEXT    NOT NULL DEFAULT '',
    extra      REAL    NOT NULL CHECK (extra > 0),
    note       TEXT    NOT NULL DEFAULT '',
    granted_by TEXT    NOT NULL, -- a handle, or 'root'
    granted_at INTEGER NOT NULL,
    ends_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX quota_grants_user ON quota_grants (user_id, ends_at);

-- Since when somebody's running work is over a limit: it is given notice, and a while.
CREATE TABLE quota_over (
    user_id INTEGER PRIMARY KEY REFERENCES users (id),
    since   INTEGER NOT NULL
) STRICT;
