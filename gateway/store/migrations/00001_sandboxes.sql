-- +goose Up
CREATE TABLE sandboxes (
	id       TEXT PRIMARY KEY,
	name     TEXT NOT NULL,
	owner    TEXT NOT NULL,
	spec     BLOB NOT NULL,
	instance BLOB NOT NULL,
	state    TEXT NOT NULL,
	since    INTEGER NOT NULL, -- milliseconds of Unix time, as all times here
	created  INTEGER NOT NULL,
	error    TEXT NOT NULL
) STRICT;

-- A name is free again as soon as its sandbox is being deleted, however long the engine takes.
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (name) WHERE state <> 'deleting';

CREATE TABLE events (
	seq     INTEGER PRIMARY KEY,
	sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
	time    INTEGER NOT NULL,
	kind    TEXT NOT NULL,
	data    BLOB NOT NULL
) STRICT;

CREATE INDEX events_sandbox ON events (sandbox, seq);

-- +goose Down
DROP TABLE events;
DROP TABLE sandboxes;
