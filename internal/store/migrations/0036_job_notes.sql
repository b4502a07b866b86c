-- Jobs: what of their script changes nothing here, a file of its own for what they say on standard error, which mails
-- their owner wants, and what reads their script.

-- +goose Up
ALTER TABLE jobs ADD COLUMN notes TEXT NOT NULL DEFAULT '[]'; -- for the owner, as JSON
ALTER TABLE jobs ADD COLUMN errors TEXT NOT NULL DEFAULT ''; -- the file of standard error, below the home; '' = with the output
ALTER TABLE jobs ADD COLUMN mail TEXT NOT NULL DEFAULT ''; -- BEGIN, END, FAIL, TIME_LIMIT or NONE, with commas; '' = as the owner has chosen
ALTER TABLE jobs ADD COLUMN reader TEXT NOT NULL DEFAULT ''; -- the program that reads the script; '' = by its first line
