-- Groups that a provider leaves out: people keep role and groups for a limited time only. All times are UTC unix
-- milliseconds.

-- +goose Up
ALTER TABLE identities ADD COLUMN kept_until INTEGER; -- until when they keep role and groups; NULL = nothing is left out
ALTER TABLE identities ADD COLUMN kept_then TEXT; -- what they get after that, as JSON; NULL = nothing, or they have it already

-- Whom the rules refused before their refusal was noted here, under whatever name the provider gave them by then.
UPDATE identities SET refused_at = (SELECT max(audit.at) FROM audit JOIN users ON users.handle = audit.target
    WHERE users.id = identities.user_id AND audit.action = 'sign-in.failed'
    AND substr(audit.detail, 1, length(identities.provider) + 2) = identities.provider || ', '
    AND substr(audit.detail, -length(': not admitted by the rules')) = ': not admitted by the rules'
    AND audit.at > max(coalesce(identities.used_at, 0), identities.linked_at))
WHERE refused_at IS NULL AND told_at IS NULL;
