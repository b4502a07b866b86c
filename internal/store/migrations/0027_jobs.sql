-- Jobs: launches that run a program to its end. What a job shares with a notebook is its row in launches.

-- +goose Up
CREATE TABLE jobs (
    launch_id  INTEGER PRIMARY KEY REFERENCES launches (id),
    script     TEXT    NOT NULL DEFAULT '', -- '' for a command
    args       TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(args)), -- of the script, or the command and its own
    dir        TEXT    NOT NULL DEFAULT '', -- where it runs, below the home
    output     TEXT    NOT NULL,            -- the file of its log, below the home
    time_limit INTEGER NOT NULL CHECK (time_limit > 0), -- in seconds
    exit_code  INTEGER                      -- of its program, once it has ended by itself
) STRICT;
