-- +goose Up
CREATE TABLE tokens (
	id        TEXT PRIMARY KEY,
	hash      BLOB NOT NULL UNIQUE, -- SHA-256 of the secret, which is nowhere
	principal TEXT NOT NULL,
	kind      TEXT NOT NULL, -- agent or person
	rights    TEXT NOT NULL, -- watch or drive
	label     TEXT NOT NULL,
	created   INTEGER NOT NULL, -- milliseconds since 1970
	expires   INTEGER NOT NULL  -- as created; 0 is never
) STRICT;

-- +goose Down
DROP TABLE tokens;
