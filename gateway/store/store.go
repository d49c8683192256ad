// Package store keeps the daemon's rows – sandboxes, their events, their shares, and tokens –
// through crashes and power cuts, in one SQLite database that one process at a time may open. It
// does not interpret the rows.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Store is an open database. Its methods may be called concurrently. Acknowledged writes survive a
// power cut.
type Store struct {
	dir  string
	db   *sql.DB
	lock *lock
}

// Sandbox is one row. Spec and Instance are JSON that the store does not read.
type Sandbox struct {
	ID       string
	Name     string // unique among the rows whose State is not Deleting
	Owner    string
	Spec     []byte
	Instance []byte // empty before the first instance
	State    string
	Since    time.Time // last change of State; with a resolution of a millisecond
	Created  time.Time
	Error    string
}

// Deleting is the only State that the store interprets: such a row does not reserve its name.
const Deleting = "deleting"

// Event is an event of a sandbox, in order of adding.
type Event struct {
	Sandbox string // Sandbox.ID
	Time    time.Time
	Kind    string
	Data    []byte // JSON
}

// Connection is the Kind of events that a program in the sandbox can cause without limit. They are
// counted separately, so that they do not displace the others.
const Connection = "connection"

// Numbers of events that are kept for each sandbox.
const (
	keptEvents      = 10_000 // without connections
	keptConnections = 5_000
)

// Errors that callers branch on.
var (
	ErrNameTaken = errors.New("name is taken")
	ErrNoSandbox = errors.New("no such sandbox")
)

// Dir is the state directory.
func (s *Store) Dir() string { return s.dir }

// Close closes the database and lets another process open it.
func (s *Store) Close() error {
	return errors.Join(s.db.Close(), s.lock.release())
}

// Sandboxes returns all rows, oldest first.
func (s *Store) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT id, name, owner, spec, instance, state, since, created, error FROM sandboxes ORDER BY created, id`)
	if err != nil {
		return nil, fmt.Errorf("store: sandboxes: %w", err)
	}
	defer rows.Close()
	var all []Sandbox
	for rows.Next() {
		var b Sandbox
		var since, created int64
		if err := rows.Scan(&b.ID, &b.Name, &b.Owner, &b.Spec, &b.Instance, &b.State, &since,
			&created, &b.Error); err != nil {
			return nil, fmt.Errorf("store: sandboxes: %w", err)
		}
		b.Since, b.Created = time.UnixMilli(since), time.UnixMilli(created)
		all = append(all, b)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("store: sandboxes: %w", err)
	}
	return all, nil
}

// Add adds a row. It returns ErrNameTaken if another live one has its name.
func (s *Store) Add(ctx context.Context, b Sandbox) error {
	_, err := s.db.ExecContext(ctx,
		`INSERT INTO sandboxes (id, name, owner, spec, instance, state, since, created, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		b.ID, b.Name, b.Owner, blob(b.Spec), blob(b.Instance), b.State, b.Since.UnixMilli(),
		b.Created.UnixMilli(), b.Error)
	if err != nil {
		return fmt.Errorf("store: add sandbox %s: %w", b.ID, naming(err))
	}
	return nil
}

// Put replaces the row with b's ID. It returns ErrNoSandbox if there is none.
func (s *Store) Put(ctx context.Context, b Sandbox) error {
	res, err := s.db.ExecContext(ctx,
		`UPDATE sandboxes SET name = ?, owner = ?, spec = ?, instance = ?, state = ?, since = ?, created = ?, error = ? WHERE id = ?`,
		b.Name, b.Owner, blob(b.Spec), blob(b.Instance), b.State, b.Since.UnixMilli(),
		b.Created.UnixMilli(), b.Error, b.ID)
	if err == nil {
		var n int64
		if n, err = res.RowsAffected(); err == nil && n == 0 {
			err = ErrNoSandbox
		}
	}
	if err != nil {
		return fmt.Errorf("store: put sandbox %s: %w", b.ID, naming(err))
	}
	return nil
}

// Delete removes a row and its events. A missing row is not an error.
func (s *Store) Delete(ctx context.Context, id string) error {
	if _, err := s.db.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, id); err != nil {
		return fmt.Errorf("store: delete sandbox %s: %w", id, err)
	}
	return nil
}

// AddEvents adds events in one transaction and drops the oldest ones beyond the limit. It ignores
// events of sandboxes that do not exist.
func (s *Store) AddEvents(ctx context.Context, events ...Event) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("store: add events: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	type class struct {
		id          string
		connections bool
	}
	touched := make(map[class]bool)
	for _, e := range events {
		touched[class{e.Sandbox, e.Kind == Connection}] = true
		if _, err := tx.ExecContext(ctx, `INSERT INTO events (sandbox, time, kind, data)
			SELECT id, ?, ?, ? FROM sandboxes WHERE id = ?`, e.Time.UnixMilli(), e.Kind, blob(e.Data), e.Sandbox); err != nil {
			return fmt.Errorf("store: add event of sandbox %s: %w", e.Sandbox, err)
		}
	}
	for t := range touched {
		most := keptEvents
		if t.connections {
			most = keptConnections
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM events WHERE sandbox = ?1 AND (kind = ?2) = ?3 AND seq <=
			(SELECT seq FROM events WHERE sandbox = ?1 AND (kind = ?2) = ?3 ORDER BY seq DESC LIMIT 1 OFFSET ?4)`, t.id, Connection, t.connections, most); err != nil {
			return fmt.Errorf("store: trim events of sandbox %s: %w", t.id, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("store: add events: %w", err)
	}
	return nil
}

// Events returns the newest limit events of a sandbox, oldest first.
func (s *Store) Events(ctx context.Context, id string, limit int) ([]Event, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT time, kind, data FROM
		(SELECT seq, time, kind, data FROM events WHERE sandbox = ? ORDER BY seq DESC LIMIT ?) ORDER BY seq`, id, limit)
	if err != nil {
		return nil, fmt.Errorf("store: events of sandbox %s: %w", id, err)
	}
	defer rows.Close()
	var all []Event
	for rows.Next() {
		e := Event{Sandbox: id}
		var ms int64
		if err := rows.Scan(&ms, &e.Kind, &e.Data); err != nil {
			return nil, fmt.Errorf("store: events of sandbox %s: %w", id, err)
		}
		e.Time = time.UnixMilli(ms)
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("store: events of sandbox %s: %w", id, err)
	}
	return all, nil
}

// blob keeps a nil slice from becoming NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// naming converts a violation of the name index to ErrNameTaken.
func naming(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok &&
		e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE {
		return ErrNameTaken
	}
	return err
}
