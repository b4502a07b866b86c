-- Services: jobs that go on running and answer on a port, for browsers of those who may see them.

-- +goose Up
CREATE TABLE services (
    service    INTEGER PRIMARY KEY REFERENCES jobs (launch_id),
    port       INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535), -- where its program listens, in its pod
    door       INTEGER NOT NULL CHECK (door BETWEEN 1 AND 65535), -- the head's port where browsers see it: an origin of its own
    share      TEXT    NOT NULL CHECK (share IN ('private', 'group', 'lab')), -- who may see it beside its owner
    group_id   INTEGER REFERENCES groups (id) ON DELETE SET NULL, -- whose members; of a group that is gone: nobody
    restarts   INTEGER NOT NULL CHECK (restarts IN (0, 1)), -- its program is started again when it ends
    stop_at    INTEGER NOT NULL                              -- when it is stopped
) STRICT;
CREATE INDEX services_door ON services (door);
