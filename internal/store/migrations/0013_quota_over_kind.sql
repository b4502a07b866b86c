-- +goose Up
-- Beyond which quota somebody's running work goes.
ALTER TABLE quota_over ADD COLUMN kind TEXT NOT NULL DEFAULT 'gpu-hours-week';
