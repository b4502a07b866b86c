-- Jobs that wait for something else than their turn, such as the end of other jobs.

-- +goose Up
ALTER TABLE jobs ADD COLUMN after TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(after)); -- whom it waits for
ALTER TABLE jobs ADD COLUMN held INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1)); -- it has no place in the line yet
