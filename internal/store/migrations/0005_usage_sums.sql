-- Sums of the ledger over days and over spans of 32 days, so that a question about a year reads
-- thousands of rows and not hundreds of thousands. They are written with the hours, in the same
-- transaction. Days are those of UTC; spans of 32 begin with 1970.

-- +goose Up
CREATE TABLE usage_sums (
    span        INTEGER NOT NULL CHECK (span IN (86400, 2764800)), -- seconds
    start       INTEGER NOT NULL, -- its beginning, unix seconds
    gpu         INTEGER NOT NULL REFERENCES usage_gpus (id),
    kind        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    watched     REAL    NOT NULL, -- this and the following as in usage
    held        REAL    NOT NULL,
    busy        REAL    NOT NULL,
    unknown     REAL    NOT NULL,
    compute     REAL    NOT NULL,
    compute_for REAL    NOT NULL,
    memory      REAL    NOT NULL,
    memory_for  REAL    NOT NULL,
    energy      REAL    NOT NULL,
    energy_for  REAL    NOT NULL,
    PRIMARY KEY (span, start, gpu, kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_sums_name ON usage_sums (kind, name, span, start);

INSERT INTO usage_sums
SELECT 86400, hour / 86400 * 86400 AS day, gpu, kind, name, sum(watched), sum(held), sum(busy), sum(unknown),
    sum(compute), sum(compute_for), sum(memory), sum(memory_for), sum(energy), sum(energy_for)
FROM usage GROUP BY day, gpu, kind, name;

INSERT INTO usage_sums
SELECT 2764800, start / 2764800 * 2764800 AS month, gpu, kind, name, sum(watched), sum(held), sum(busy), sum(unknown),
    sum(compute), sum(compute_for), sum(memory), sum(memory_for), sum(energy), sum(energy_for)
FROM usage_sums WHERE span = 86400 GROUP BY month, gpu, kind, name;
