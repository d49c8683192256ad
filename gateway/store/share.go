package store

import (
	"context"
	"fmt"
)

// Share is the rights of a principal in a sandbox of another owner.
type Share struct {
	Sandbox   string // Sandbox.ID
	Principal string
	Rights    string
}

// Shares returns all rows, in the order of their principals.
func (s *Store) Shares(ctx context.Context) ([]Share, error) {
	rows, err := s.db.QueryContext(
		ctx, `SELECT sandbox, principal, rights FROM shares ORDER BY sandbox, principal`)
	if err != nil {
		return nil, fmt.Errorf("store: shares: %w", err)
	}
	defer rows.Close()
	var all []Share
	for rows.Next() {
		var sh Share
		if err := rows.Scan(&sh.Sandbox, &sh.Principal, &sh.Rights); err != nil {
			return nil, fmt.Errorf("store: shares: %w", err)
		}
		all = append(all, sh)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("store: shares: %w", err)
	}
	return all, nil
}

// PutShare adds a row, or changes the rights of an existing one. It ignores a sandbox that does not
// exist.
func (s *Store) PutShare(ctx context.Context, sh Share) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO shares (sandbox, principal, rights) SELECT id, ?, ? FROM sandboxes WHERE id = ?
		ON CONFLICT (sandbox, principal) DO UPDATE SET rights = excluded.rights`, sh.Principal, sh.Rights, sh.Sandbox)
	if err != nil {
		return fmt.Errorf("store: share sandbox %s: %w", sh.Sandbox, err)
	}
	return nil
}

// DeleteShare removes a row. A missing row is not an error.
func (s *Store) DeleteShare(ctx context.Context, sandbox, principal string) error {
	if _, err := s.db.ExecContext(ctx, `DELETE FROM shares WHERE sandbox = ? AND principal = ?`,
		sandbox, principal); err != nil {
		return fmt.Errorf("store: unshare sandbox %s: %w", sandbox, err)
	}
	return nil
}
