// Package store keeps the daemon's rows – sandboxes, their events, who they are shared with, and tokens – through crashes and power cuts, in one SQLite
// database that one process at a time may open. It knows nothing of what the rows mean.
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

// Store is an open database. Its methods may be called at once. What a method acknowledged survives a power cut.
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
	Instance []byte // empty until there is one
	State    string
	Since    time.Time // when State became so; kept to the millisecond
	Created  time.Time
	Error    string
}

// Deleting is the one State that the store knows: such a row does not hold its name.
const Deleting = "deleting"

// Event is something that happened to a sandbox, in order of adding.
type Event struct {
	Sandbox string // Sandbox.ID
	Time    time.Time
	Kind    string
	Data    []byte // JSON
}

// Connection is the Kind of what a program in the sandbox makes as many of as it likes. They are counted apart, so that it
// cannot make the rest be forgotten.
const Connection = "connection"

// How many events of a sandbox are kept.
const (
	keptEvents      = 10_000 // but for connections
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
		if err := rows.Scan(&b.ID, &b.Name, &b.Owner, &b.Spec, &b.Instance, &b.State, &since, &created, &b.Error); err != nil {
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

// Add adds a row. ErrNameTaken says that another live one has its name.
func (s *Store) Add(ctx context.Context, b Sandbox) error {
	_, err := s.db.ExecContext(ctx,
		`INSERT INTO sandboxes (id, name, owner, spec, instance, state, since, created, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		b.ID, b.Name, b.Owner, blob(b.Spec), blob(b.Instance), b.State, b.Since.UnixMilli(), b.Created.UnixMilli(), b.Error)
	if err != nil {
		return fmt.Errorf("store: add sandbox %s: %w", b.ID, naming(err))
	}
	return nil
}

// Put replaces the row with b's ID. ErrNoSandbox says that there is none.
func (s *Store) Put(ctx context.Context, b Sandbox) error {
	res, err := s.db.ExecContext(ctx,
		`UPDATE sandboxes SET name = ?, owner = ?, spec = ?, instance = ?, state = ?, since = ?, created = ?, error = ? WHERE id = ?`,
		b.Name, b.Owner, blob(b.Spec), blob(b.Instance), b.State, b.Since.UnixMilli(), b.Created.UnixMilli(), b.Error, b.ID)
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

// Delete removes a row and its events. Removing what is not there is not an error.
func (s *Store) Delete(ctx context.Context, id string) error {
	if _, err := s.db.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, id); err != nil {
		return fmt.Errorf("store: delete sandbox %s: %w", id, err)
	}
	return nil
}

// AddEvents adds events in one transaction and drops the oldest of a sandbox that has too many. Events of sandboxes that
// are gone are left out.
func (s *Store) AddEvents(ctx context.Context, events ...Event) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("store: add events: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
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

// naming turns the violation of the name index into ErrNameTaken.
func naming(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE {
		return ErrNameTaken
	}
	return err
}
