package store

import (
	"bytes"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed migrations/*.sql
var migrations embed.FS

// File is the database's name in the state directory.
const File = "sandboxd.db"

// applicationID marks a database as sandboxd's (sqlite.org/pragma.html, application_id): "sbxd".
const applicationID = 0x73627864

// DamagedError means that the database cannot be read. It is never treated as empty, because the
// sandboxes in it exist.
type DamagedError struct {
	Path string
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf(
		"store %s is damaged: %v; restore a copy, or move it and its -wal and -shm files away; "+
			"sandboxd then finds sandboxes by their labels, and their names and owners in the "+
			"state "+
			"directory", e.Path, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// NewerError means that a later version of sandboxd has used the database.
type NewerError struct {
	Path       string
	Have, Know int64 // schema versions: of the file, and the newest that this program supports
}

func (e *NewerError) Error() string {
	return fmt.Sprintf(
		"store %s has schema version %d, this sandboxd supports up to %d; start the newer "+
			"sandboxd that wrote it, "+
			"or choose another state directory with --state", e.Path, e.Have, e.Know)
}

// Open opens the store in the state directory dir, makes both if they are missing, and locks the
// directory until Close. Errors that callers branch on: *DirError, *LockedError, *DamagedError,
// *NewerError.
func Open(ctx context.Context, dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := MakeDir(dir); err != nil {
		return nil, err
	}
	held, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	db, err := openFile(ctx, filepath.Join(dir, File))
	if err != nil {
		return nil, errors.Join(err, held.release())
	}
	return &Store{dir: dir, db: db, lock: held}, nil
}

// openFile opens the database, and makes it if there is none.
func openFile(ctx context.Context, path string) (*sql.DB, error) {
	err := checkHeader(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = create(ctx, path)
	}
	if err != nil {
		return nil, err
	}
	db, err := connect(path)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, db, path); err != nil {
		db.Close()
		return nil, damage(path, err)
	}
	return db, nil
}

// checkHeader rejects files that SQLite would treat as an empty database: an empty or truncated
// file.
func checkHeader(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("store %s: not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("store %s: others can read it (mode %04o); chmod 600 %s", path, mode,
			path)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer f.Close()
	magic := []byte("SQLite format 3\x00")
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(f, head); err != nil {
		return &DamagedError{Path: path, Err: fmt.Errorf("header: %w", err)}
	}
	if !bytes.Equal(head, magic) {
		return &DamagedError{Path: path, Err: errors.New("not a database")}
	}
	return nil
}

// create makes the database under another name and renames it when it is complete, so that a crash
// never leaves a file that looks damaged.
func create(ctx context.Context, path string) error {
	for _, side := range []string{path + "-wal", path + "-journal"} {
		if _, err := os.Lstat(side); err == nil {
			return &DamagedError{Path: path,
				Err: fmt.Errorf("it is missing, but %s exists", filepath.Base(side))}
		}
	}
	fresh := path + ".new"
	for _, old := range []string{fresh, fresh + "-wal", fresh + "-shm"} {
		if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("store: %w", err)
		}
	}
	// SQLite gives the side files the mode of the database.
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	db, err := connect(fresh)
	if err != nil {
		return err
	}
	if _, err = db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d",
		applicationID)); err == nil {
		err = migrate(ctx, db, fresh)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("store: make %s: %w", path, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

func connect(path string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		// FULL: with WAL, a weaker setting may lose the last commits in a power cut.
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)",
			"foreign_keys(1)"},
		"_txlock": {"immediate"},
	}.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	db.SetMaxOpenConns(1) // one writer, and no reader that finds it locked
	return db, nil
}

// migrate checks that the database is intact, ours, and not newer than this program, and updates
// its schema.
func migrate(ctx context.Context, db *sql.DB, path string) error {
	var id int64
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if id != applicationID {
		return &DamagedError{Path: path, Err: errors.New("a database of another program")}
	}
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return &DamagedError{Path: path, Err: errors.New(verdict)}
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir,
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("store: migrations: %w", err)
	}
	have, know, err := p.GetVersions(ctx)
	if err != nil {
		return err
	}
	if have > know {
		return &NewerError{Path: path, Have: have, Know: know}
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("store %s: migrate: %w", path, err)
	}
	return nil
}

// damage returns a DamagedError for errors of SQLite that blame the file and not the call.
func damage(path string, err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			return &DamagedError{Path: path, Err: err}
		case sqlite3.SQLITE_IOERR:
			return fmt.Errorf("store %s: %w; check its disk", path, err)
		}
		return fmt.Errorf("store %s: %w", path, err)
	}
	return err
}
