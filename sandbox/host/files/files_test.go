package files

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/sandbox/signals"
)

func TestMain(m *testing.M) {
	signals.DefaultForChildren()
	goleak.VerifyTestMain(m)
}

// by runs commands here, with a shell, after its start-up files.
func by(startup string, shell ...string) Run {
	return func(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) (
		int, error) {
		cmd := exec.CommandContext(ctx, shell[0], append(shell[1:], "-c", startup+command)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode(), nil
		}
		return 0, err
	}
}

// client serves files with run and returns a client.
func client(t *testing.T, run Run) *sftp.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- Serve(t.Context(), theirs, run)
		theirs.Close()
	}()
	c, err := sftp.NewClientPipe(ours, ours, sftp.UseConcurrentWrites(true))
	if err != nil {
		ours.Close()
		t.Fatalf("%v: %v", err, <-served)
	}
	t.Cleanup(func() {
		c.Close()
		ours.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

func shells(t *testing.T) map[string]Run {
	all := map[string]Run{"dash": by("", "dash"), "bash": by("", "bash"),
		"noise":         by("echo noise; echo more >&2\n", "bash"),
		"another shell": by("exec zsh -f\n", "bash")}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("busybox is not here: scripts/setup test installs it")
	}
	dir := t.TempDir()
	for _, applet := range []string{"sh", "ash", "cat", "stat", "find", "touch", "mv", "rm", "ln",
		"ls", "mkdir", "rmdir", "readlink", "chmod", "chown", "wc", "dd", "date"} {
		if err := os.Symlink(busybox, filepath.Join(dir, applet)); err != nil {
			t.Fatal(err)
		}
	}
	all["busybox"] = by("PATH="+dir+"; ", busybox, "ash")
	return all
}

// Written files have their bytes, mode and time, and reading returns the same.
func TestFiles(t *testing.T) {
	for name, run := range shells(t) {
		t.Run(name, func(t *testing.T) {
			c := client(t, run)
			dir := t.TempDir()
			body := make([]byte, 3<<20)
			rand.Read(body)
			for _, f := range []struct {
				name string
				body []byte
				mode fs.FileMode
			}{
				{"plain", body, 0o640}, {"empty", nil, 0o600}, {"it's \\ \"ü\"\nline two", []byte("x\n\x00\r\n"), 0o4755}, {"-rf", []byte("no newline"), 0o444},
			} {
				file := dir + "/" + f.name
				w, err := c.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
				if err != nil {
					t.Fatalf("%q: %v", f.name, err)
				}
				if _, err := w.ReadFrom(bytes.NewReader(f.body)); err != nil {
					t.Fatalf("%q: %v", f.name, err)
				}
				mode := uint32(f.mode.Perm())
				if f.mode&0o4000 != 0 {
					mode |= 0o4000
				}
				old := time.Unix(981173106, 0)
				if err := errors.Join(c.Chmod(file, os.FileMode(mode&0o777)),
					c.Chtimes(file, old, old), w.Close()); err != nil {
					t.Fatalf("%q: %v", f.name, err)
				}
				got, err := os.ReadFile(file)
				if err != nil || !bytes.Equal(got, f.body) {
					t.Errorf("%q: %d bytes, %v; want %d, the same", f.name, len(got), err,
						len(f.body))
				}
				st, err := c.Stat(file)
				if err != nil || st.Mode().Perm() != f.mode.Perm() ||
					st.Size() != int64(len(f.body)) || !st.ModTime().Equal(old) {
					t.Errorf("%q: %+v, %v", f.name, st, err)
				}
				r, err := c.Open(file)
				if err != nil {
					t.Fatal(err)
				}
				var back bytes.Buffer
				if _, err := r.WriteTo(&back); err != nil || !bytes.Equal(back.Bytes(), f.body) {
					t.Errorf("%q: %d bytes came back, %v", f.name, back.Len(), err)
				}
				r.Close()
			}
			list, err := c.ReadDir(dir)
			var names []string
			for _, st := range list {
				names = append(names, st.Name())
			}
			if slices.Sort(names); err != nil ||
				!slices.Equal(names, []string{"-rf", "empty", "it's \\ \"ü\"\nline two", "plain"}) {
				t.Errorf("list: %q, %v", names, err)
			}
			w, err := c.OpenFile(dir+"/plain", os.O_WRONLY)
			if err == nil {
				_, err = w.WriteAt([]byte("HERE"), 1000)
				err = errors.Join(err, w.Close())
			}
			both := make([]byte, 10)
			if rw, err := c.OpenFile(dir+"/plain", os.O_RDWR); err != nil {
				t.Errorf("to read and write: %v", err)
			} else {
				_, err := rw.WriteAt([]byte("BOTH"), 2000)
				_, readErr := rw.ReadAt(both, 1997)
				if want := slices.Concat(body[1997:2000], []byte("BOTH"),
					body[2004:2007]); errors.Join(err, readErr, rw.Close()) != nil ||
					!bytes.Equal(both, want) {
					t.Errorf("to read and write: %q, %v, %v; want %q", both, err, readErr, want)
				}
				copy(body[2000:], "BOTH")
			}
			if got, _ := os.ReadFile(dir + "/plain"); err != nil || len(got) != len(body) ||
				!bytes.Equal(got[1004:], body[1004:]) || string(got[1000:1004]) != "HERE" ||
				!bytes.Equal(got[:1000], body[:1000]) {
				t.Errorf("written over in the middle: %d bytes, %v", len(got), err)
			}
		})
	}
}

// Names change as with SFTP, and each failure has its own error.
func TestNamesAndErrors(t *testing.T) {
	for name, run := range shells(t) {
		t.Run(name, func(t *testing.T) {
			c := client(t, run)
			dir := t.TempDir()
			for _, err := range []error{c.Mkdir(dir + "/d"), c.Symlink("d", dir+"/l"),
				os.WriteFile(dir+"/f", []byte("f"), 0o600),
				c.Rename(dir+"/f", dir+"/g"), os.WriteFile(dir+"/f", []byte("new"), 0o600),
				c.PosixRename(dir+"/f", dir+"/g"), c.Truncate(dir+"/g", 2)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if got, err := os.ReadFile(dir + "/g"); string(got) != "ne" || err != nil {
				t.Errorf("got %q, %v; want ne", got, err)
			}
			if to, err := c.ReadLink(dir + "/l"); to != "d" || err != nil {
				t.Errorf("link: %q, %v", to, err)
			}
			if st, err := c.Lstat(dir + "/l"); err != nil || st.Mode()&fs.ModeSymlink == 0 {
				t.Errorf("Lstat: %v, %v", st, err)
			}
			if st, err := c.Stat(dir + "/l"); err != nil || !st.IsDir() {
				t.Errorf("Stat: %v, %v", st, err)
			}
			if list, err := c.ReadDir(dir + "/d"); len(list) > 0 || err != nil {
				t.Errorf("an empty directory: %v, %v", list, err)
			}
			if wd, err := c.Getwd(); err != nil || !strings.HasPrefix(wd, "/") {
				t.Errorf("Getwd: %q, %v", wd, err)
			}
			open := func(name string, flags int) error {
				f, err := c.OpenFile(name, flags)
				if err == nil {
					f.Close()
				}
				return err
			}
			_, list := c.ReadDir(dir + "/none")
			_, stat := c.Stat(dir + "/none")
			for what, of := range map[string]struct{ got, want error }{
				"open nothing":             {open(dir+"/none", os.O_RDONLY), fs.ErrNotExist},
				"write where nothing is":   {open(dir+"/none", os.O_WRONLY), fs.ErrNotExist},
				"write where no folder is": {open(dir+"/none/f", os.O_WRONLY|os.O_CREATE|os.O_TRUNC), fs.ErrNotExist},
				"list nothing":             {list, fs.ErrNotExist},
				"stat nothing":             {stat, fs.ErrNotExist},
				"remove nothing":           {c.Remove(dir + "/none"), fs.ErrNotExist},
			} {
				if !errors.Is(of.got, of.want) {
					t.Errorf("%s: got %v, want %v", what, of.got, of.want)
				}
			}
			for what, err := range map[string]error{
				"read a directory":      open(dir+"/d", os.O_RDONLY),
				"write a directory":     open(dir+"/d", os.O_WRONLY|os.O_CREATE|os.O_TRUNC),
				"make what is there":    open(dir+"/g", os.O_WRONLY|os.O_CREATE|os.O_EXCL),
				"a directory again":     c.Mkdir(dir + "/d"),
				"rename over a file":    c.Rename(dir+"/l", dir+"/g"),
				"rmdir of what is full": c.RemoveDirectory(dir),
			} {
				if err == nil {
					t.Errorf("%s: no error", what)
				}
			}
			if err := errors.Join(c.Remove(dir+"/l"), c.Remove(dir+"/g"),
				c.RemoveDirectory(dir+"/d")); err != nil {
				t.Errorf("remove: %v", err)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// On a machine that runs other commands Serve returns an error before it serves anything.
func TestNothingServes(t *testing.T) {
	for name, run := range map[string]Run{
		"a menu": func(_ context.Context, _ string, _ io.Reader, stdout, _ io.Writer) (int, error) {
			_, err := stdout.Write([]byte("menu? "))
			return 0, err
		},
		"no commands": func(context.Context, string, io.Reader, io.Writer, io.Writer) (int, error) {
			return 0, errors.New("runs no commands")
		},
	} {
		var said bytes.Buffer
		err := Serve(t.Context(), struct {
			io.Reader
			io.WriteCloser
		}{strings.NewReader(""), closer{&said}}, run)
		if err == nil || !strings.Contains(err.Error(), "it has no SFTP") || said.Len() > 0 {
			t.Errorf("%s: got %v, and %d bytes were written", name, err, said.Len())
		}
	}
}

type closer struct{ io.Writer }

func (closer) Close() error { return nil }
