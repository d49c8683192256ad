-- +goose Up
CREATE TABLE shares (
	sandbox   TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	principal TEXT NOT NULL,
	rights    TEXT NOT NULL, -- watch or drive
	PRIMARY KEY (sandbox, principal)
) STRICT;

-- +goose Down
DROP TABLE shares;
