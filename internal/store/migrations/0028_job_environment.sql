-- The environment of the lab in which a job runs, as NAME/VERSION; '' for the Python of its image.

-- +goose Up
ALTER TABLE jobs ADD COLUMN environment TEXT NOT NULL DEFAULT '';
