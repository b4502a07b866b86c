-- Jobs: the names of their files as they were asked for, with patterns such as %j, for when a job is run again.

-- +goose Up
ALTER TABLE jobs ADD COLUMN output_as TEXT; -- '' = the usual name; NULL = of a job from before, not known
ALTER TABLE jobs ADD COLUMN errors_as TEXT; -- '' = with the output; NULL = of a job from before, not known
