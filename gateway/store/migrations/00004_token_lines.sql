-- +goose Up
-- Fingerprint of the key, or the authority, whose line of authorized_keys made it; empty is any of
-- its principal's.
ALTER TABLE tokens ADD COLUMN line TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE tokens DROP COLUMN line;
