-- Arrays of jobs: one that is many times the same program. The array's own row runs nothing; its elements are made
-- from it when they may stand in line.

-- +goose Up
ALTER TABLE jobs ADD COLUMN array_tasks TEXT NOT NULL DEFAULT ''; -- of an array: the numbers of its elements, as in 0-9%4
ALTER TABLE jobs ADD COLUMN array_gpus INTEGER NOT NULL DEFAULT 0; -- of an array: GPUs of each element; its own launch has none
ALTER TABLE jobs ADD COLUMN array_job INTEGER REFERENCES jobs (launch_id); -- of an element: its array
ALTER TABLE jobs ADD COLUMN array_task INTEGER; -- and its number there
CREATE UNIQUE INDEX jobs_array ON jobs (array_job, array_task) WHERE array_job IS NOT NULL;
