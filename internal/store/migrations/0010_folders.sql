-- Folders that people share, how large homes and folders are, and whose home is full.
-- All times are UTC unix milliseconds.

-- +goose Up

-- A row is never deleted: neither its id, which names the folder on disk, nor its numbers are given again.
CREATE TABLE folders (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT    NOT NULL,
    kind       TEXT    NOT NULL CHECK (kind IN ('group', 'dataset', 'hand-in', 'host')),
    note       TEXT    NOT NULL DEFAULT '',
    guests     TEXT    NOT NULL DEFAULT 'read' CHECK (guests IN ('write', 'read', 'none')), -- guests in the group
    others     TEXT    NOT NULL DEFAULT 'none' CHECK (others IN ('read', 'none')), -- everybody in the lab
    path       TEXT    NOT NULL DEFAULT '' CHECK ((path <> '') = (kind = 'host')), -- of the machine's own folder
    host_users INTEGER NOT NULL DEFAULT 0 CHECK (host_users IN (0, 1)), -- its file system knows no mapped user IDs
    -- The group that may write; the number after it is the one that may read. NULL for a folder of the machine.
    gid        INTEGER UNIQUE CHECK (gid BETWEEN 60000 AND 64998 AND gid % 2 = 0),
    created_by TEXT    NOT NULL, -- a handle, or 'root'
    created_at INTEGER NOT NULL,
    deleted_at INTEGER,
    purged_at  INTEGER CHECK (purged_at IS NULL OR deleted_at IS NOT NULL),
    CHECK ((gid IS NULL) = (kind = 'host'))
) STRICT;
CREATE UNIQUE INDEX folders_name ON folders (name) WHERE purged_at IS NULL;

-- +goose StatementBegin
CREATE TRIGGER folders_keep_identity BEFORE UPDATE OF id, kind, path, gid ON folders
WHEN NEW.id <> OLD.id OR NEW.kind <> OLD.kind OR NEW.path <> OLD.path OR NEW.gid IS NOT OLD.gid
BEGIN
    SELECT RAISE(ABORT, 'id, kind, path and gid of a folder never change');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER folders_keep_tombstones BEFORE DELETE ON folders
BEGIN
    SELECT RAISE(ABORT, 'folders are never deleted, only marked');
END;
-- +goose StatementEnd

-- The groups a folder is for. When a group ends, its members lose the folder.
CREATE TABLE folder_groups (
    folder_id INTEGER NOT NULL REFERENCES folders (id),
    group_id  INTEGER NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
    PRIMARY KEY (folder_id, group_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX folder_groups_group ON folder_groups (group_id);

-- What a notebook has open, from before its start until its end.
CREATE TABLE launch_folders (
    launch_id INTEGER NOT NULL REFERENCES launches (id),
    folder_id INTEGER NOT NULL REFERENCES folders (id),
    sub       TEXT    NOT NULL DEFAULT '', -- the folder within, of a hand-in
    read_only INTEGER NOT NULL CHECK (read_only IN (0, 1)),
    PRIMARY KEY (launch_id, folder_id, sub)
) STRICT, WITHOUT ROWID;

-- Whether a notebook may write in its owner's home, in the same time.
CREATE TABLE launch_homes (
    launch_id INTEGER PRIMARY KEY REFERENCES launches (id),
    read_only INTEGER NOT NULL CHECK (read_only IN (0, 1))
) STRICT;

-- How large homes and folders were when they were measured last.
CREATE TABLE sizes (
    what    TEXT    NOT NULL CHECK (what IN ('home', 'folder')),
    id      INTEGER NOT NULL, -- of the person, or the folder
    bytes   INTEGER NOT NULL CHECK (bytes >= 0), -- on disk
    files   INTEGER NOT NULL CHECK (files >= 0),
    largest TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(largest)),
    at      INTEGER NOT NULL,
    PRIMARY KEY (what, id)
) STRICT, WITHOUT ROWID;

-- Since when a home is beyond its limit while its notebooks run: they get notice, and a while.
CREATE TABLE home_over (
    user_id INTEGER PRIMARY KEY REFERENCES users (id),
    since   INTEGER NOT NULL
) STRICT;

-- Homes of which every file counts for their owner's project quota.
CREATE TABLE home_projects (
    user_id INTEGER PRIMARY KEY REFERENCES users (id)
) STRICT;
