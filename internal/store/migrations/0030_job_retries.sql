-- Jobs that are started again when they fail.

-- +goose Up
ALTER TABLE jobs ADD COLUMN retries INTEGER NOT NULL DEFAULT 0 CHECK (retries >= 0);
ALTER TABLE jobs ADD COLUMN tries TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tries)); -- those that are over and were followed by another
ALTER TABLE jobs ADD COLUMN not_before INTEGER; -- when the next try may stand in line
