package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNoToken means that there is no token with that ID.
var ErrNoToken = errors.New("no such token")

// Token is a row: the principal behind a secret. The secret itself is not stored.
type Token struct {
	ID        string
	Hash      []byte // SHA-256 of the secret
	Principal string
	Kind      string
	Rights    string
	Label     string
	Line      string // line of authorized_keys that made it, by fingerprint; empty is any
	Created   time.Time
	Expires   time.Time // zero is never
}

// Tokens returns all rows, oldest first.
func (s *Store) Tokens(ctx context.Context) ([]Token, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, hash, principal, kind, rights, label, line,
		created, expires FROM tokens ORDER BY created, id`)
	if err != nil {
		return nil, fmt.Errorf("store: tokens: %w", err)
	}
	defer rows.Close()
	var all []Token
	for rows.Next() {
		var t Token
		var created, expires int64
		err := rows.Scan(&t.ID, &t.Hash, &t.Principal, &t.Kind, &t.Rights, &t.Label, &t.Line,
			&created, &expires)
		if err != nil {
			return nil, fmt.Errorf("store: tokens: %w", err)
		}
		t.Created = time.UnixMilli(created)
		if expires != 0 {
			t.Expires = time.UnixMilli(expires)
		}
		all = append(all, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("store: tokens: %w", err)
	}
	return all, nil
}

// AddToken adds a row. Its ID and its hash are new.
func (s *Store) AddToken(ctx context.Context, t Token) error {
	var expires int64
	if !t.Expires.IsZero() {
		expires = t.Expires.UnixMilli()
	}
	_, err := s.db.ExecContext(ctx, `INSERT INTO tokens
		(id, hash, principal, kind, rights, label, line, created, expires)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, t.ID, t.Hash, t.Principal, t.Kind, t.Rights, t.Label,
		t.Line, t.Created.UnixMilli(), expires)
	if err != nil {
		return fmt.Errorf("store: add token %s: %w", t.ID, err)
	}
	return nil
}

// DeleteExpiredTokens removes the rows of tokens that have expired by now.
func (s *Store) DeleteExpiredTokens(ctx context.Context, now time.Time) error {
	if _, err := s.db.ExecContext(ctx, `DELETE FROM tokens WHERE expires <> 0 AND expires <= ?`,
		now.UnixMilli()); err != nil {
		return fmt.Errorf("store: delete expired tokens: %w", err)
	}
	return nil
}

// DeleteToken removes a row. It returns ErrNoToken if there is none.
func (s *Store) DeleteToken(ctx context.Context, id string) error {
	res, err := s.db.ExecContext(ctx, `DELETE FROM tokens WHERE id = ?`, id)
	if err == nil {
		var n int64
		if n, err = res.RowsAffected(); err == nil && n == 0 {
			err = ErrNoToken
		}
	}
	if err != nil {
		return fmt.Errorf("store: delete token %s: %w", id, err)
	}
	return nil
}
