package pty

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A slave is that of its master, and named as it.
func TestOpen(t *testing.T) {
	for range 3 {
		master, slave, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer master.Close()
		defer slave.Close()
		var st, named unix.Stat_t
		n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
		if err == nil {
			err = errors.Join(unix.Fstat(int(slave.Fd()), &st), unix.Stat(slave.Name(), &named))
		}
		if err != nil || int(unix.Minor(st.Rdev)) != n || named.Rdev != st.Rdev {
			t.Errorf("%s of master %d, error %v", slave.Name(), n, err)
		}
	}
}

// Closing the master ends a read.
func TestClose(t *testing.T) {
	master, slave, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	ended := make(chan error)
	go func() {
		_, err := master.Read(make([]byte, 1))
		ended <- err
	}()
	master.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("the read ended with %v", err)
	}
}

// A program has the terminal as its own, in its size; reads of the master have deadlines, and end
// with the program.
func TestStartWithSize(t *testing.T) {
	cmd := exec.Command("sh", "-c", "tty; stty size </dev/tty; read x; exit $x")
	master, err := StartWithSize(cmd, &Winsize{Rows: 12, Cols: 34})
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	in := bufio.NewReader(master)
	for _, want := range []string{"", "12 34\r\n"} {
		got, err := in.ReadString('\n')
		if err != nil || want != "" && got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if err := master.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Error(err)
	}
	if _, err := in.ReadByte(); err == nil {
		t.Error("a read after the deadline gives something")
	}
	if err := master.SetReadDeadline(time.Time{}); err != nil {
		t.Error(err)
	}
	if err := Setsize(master, &Winsize{Rows: 1, Cols: 2, X: 3, Y: 4}); err != nil {
		t.Error(err)
	}
	if size, err := unix.IoctlGetWinsize(int(master.Fd()), unix.TIOCGWINSZ); err != nil ||
		*size != (unix.Winsize{Row: 1, Col: 2, Xpixel: 3, Ypixel: 4}) {
		t.Errorf("size %+v, error %v", size, err)
	}
	if _, err := master.WriteString("7\n"); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // says 7
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("exit code %d", got)
	}
	if _, err := io.ReadAll(in); !errors.Is(err, unix.EIO) {
		t.Errorf("a read after the end: %v", err)
	}
	if _, err := StartWithSize(exec.Command("/nonexistent"), nil); err == nil {
		t.Error("a program that is missing starts")
	}
}
