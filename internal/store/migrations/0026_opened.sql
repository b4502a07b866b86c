-- When somebody was seen to use a notebook first, so that one whose turn came and that nobody opened goes to the next.

-- +goose Up
ALTER TABLE idle ADD COLUMN opened_at INTEGER NOT NULL DEFAULT 0; -- 0 for never
UPDATE idle SET opened_at = looked_at; -- of those that run now nobody knows
