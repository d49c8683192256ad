package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
)

// logFilePath returns the log file of a daemon in the background.
func logFilePath(state string) string { return filepath.Join(state, "daemon.log") }

// logFile is the rotated log of a daemon in the background. The standard output and error of the
// process go to the same file, so that the last words of a crash are at its end.
type logFile struct{ *lumberjack.Logger }

func newLogFile(c *config.Loaded) logFile {
	return logFile{&lumberjack.Logger{Filename: logFilePath(string(c.State)),
		MaxSize: int(c.Log.MaxSize >> 20), MaxBackups: c.Log.MaxFiles}}
}

// Write appends one line. It must not be called concurrently: a slog.Handler does not.
func (l logFile) Write(p []byte) (int, error) {
	n, err := l.Logger.Write(p)
	return n, errors.Join(err, l.follow())
}

// follow makes standard output and error the current file after a rotation, by this process or
// another program. Then it has the file opened again: the library appends only to a file that it
// found, and output of others must not be overwritten.
func (l logFile) follow() error {
	current, err := os.Stat(l.Filename)
	if errors.Is(err, fs.ErrNotExist) {
		return l.Logger.Close()
	}
	var out fs.FileInfo
	if err == nil {
		out, err = os.Stderr.Stat()
	}
	if err != nil || os.SameFile(current, out) {
		return err
	}
	f, err := os.OpenFile(l.Filename, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, to := range []*os.File{os.Stdout, os.Stderr} {
		if err := redirect(to, f); err != nil {
			return err
		}
	}
	return l.Logger.Close()
}

// logBlock is how much of a log is read at once.
const logBlock = 64 << 10

// lineOffset returns the offset in f at which its last n lines begin. The last line may lack its
// end.
func lineOffset(f io.ReaderAt, size int64, n int) (int64, error) {
	if n == 0 {
		return size, nil
	}
	block := make([]byte, logBlock)
	for end := size; end > 0; {
		begin := max(end-logBlock, 0)
		part := block[:end-begin]
		if _, err := f.ReadAt(part, begin); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if end == size && part[len(part)-1] == '\n' {
			part = part[:len(part)-1] // ends the last line, and begins none
		}
		for {
			at := bytes.LastIndexByte(part, '\n')
			if at < 0 {
				break
			}
			if n--; n == 0 {
				return begin + int64(at) + 1, nil
			}
			part = part[:at]
		}
		end = begin
	}
	return 0, nil
}

// logPause is the time between two checks of the file by copyLog.
const logPause = 200 * time.Millisecond

// openLog opens a log for reading. It does not wait for the writer of a FIFO.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("log %s: not a regular file", path))
	}
	return f, nil
}

// copyLog writes the last n lines of the log at path to w and, if follow is set, what is appended
// later, until ctx ends. It goes on in the new file after a rotation.
func copyLog(ctx context.Context, w io.Writer, path string, n int, follow bool) error {
	f, err := openLog(path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	at, err := lineOffset(f, info.Size(), n)
	if err != nil {
		return err
	}
	tick := time.NewTicker(logPause)
	defer tick.Stop()
	for {
		// Asked before the file is read to its end: what is written later is in the new one.
		now, gone := os.Stat(path)
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return err
		}
		copied, err := io.Copy(w, f)
		if at += copied; err != nil || !follow {
			return err
		}
		own, err := f.Stat()
		switch {
		case err != nil:
			return err
		case gone == nil && !os.SameFile(now, own):
			next, err := openLog(path)
			if err != nil {
				break // it was rotated again
			}
			f.Close()
			f, at = next, 0
			continue
		case own.Size() < at: // it was truncated
			at = 0
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
