-- Launches whose GPUs were simulated, so that no report counts their hours. It is decided when a
-- launch is admitted, because the lab may change from simulated to real GPUs while it waits.

-- +goose Up
ALTER TABLE launches ADD COLUMN simulated INTEGER NOT NULL DEFAULT 0 CHECK (simulated IN (0, 1));
