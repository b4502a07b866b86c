-- Providers leave out which groups somebody is in: of people in very many, or since a setting changed. All times are UTC
-- unix milliseconds.

-- +goose Up
ALTER TABLE identities ADD COLUMN told_at INTEGER; -- when the provider last told all that the rules look at; NULL = not yet
ALTER TABLE identities ADD COLUMN untold_at INTEGER; -- since when it leaves something out; NULL = it does not
ALTER TABLE identities ADD COLUMN refused_at INTEGER; -- when the rules refused them; NULL = they let them in

-- Whom the rules refused since their last sign-in, as the audit log tells.
UPDATE identities SET refused_at = (SELECT max(audit.at) FROM audit WHERE audit.action = 'sign-in.failed'
    AND audit.detail = identities.provider || ', ' || identities.username || ': not admitted by the rules'
    AND audit.at > coalesce(identities.used_at, 0));
