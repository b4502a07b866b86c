-- Jobs may bring an environment of their own, and give way: whoever waits gets their GPU, and they go back into the line. What a run that gave way has lost is
-- in jobs.tries.

-- +goose Up
ALTER TABLE jobs ADD COLUMN env TEXT NOT NULL DEFAULT '{}'; -- as JSON
ALTER TABLE jobs ADD COLUMN preemptible INTEGER NOT NULL DEFAULT 0; -- its owner has said that it may give way
ALTER TABLE jobs ADD COLUMN way_launch INTEGER NOT NULL DEFAULT 0; -- while it gives way: the launch that gets its GPU
ALTER TABLE jobs ADD COLUMN way_for TEXT NOT NULL DEFAULT ''; -- and whose that is
