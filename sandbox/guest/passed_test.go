//go:build linux

package guest

import (
	"net"
	"os"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/stdio"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// dialPassing logs in over a unix socket, like a daemon.
func (s *sandbox) dialPassing(t *testing.T) (*ssh.Client, *stdio.Socket) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		conns[i], err = net.FileConn(f) // a duplicate
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.ServeConn(t.Context(), conns[1]) // tests check the other end
	}()
	files := stdio.NewSocket(conns[0].(*net.UnixConn))
	conn, chans, reqs, err := ssh.NewClientConn(files, "", s.clientConfig())
	if err != nil {
		t.Fatal(err)
	}
	client := ssh.NewClient(conn, chans, reqs)
	t.Cleanup(func() {
		client.Close()
		files.Close()
		<-served
	})
	return client, files
}

// pipes returns n descriptors.
func pipes(t *testing.T, n int) (list []int) {
	t.Helper()
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fd)
	}
	return list
}

// A request with descriptors is carried out on them or rejected: the daemon reads from nothing
// else.
func TestPassedOrNothing(t *testing.T) {
	s := newSandbox(t)
	client, files := s.dialPassing(t)
	tcp := s.dial(t)
	pty := wire.Marshal(wire.PtyReq{Cols: 80, Rows: 24})
	exec := wire.Marshal(wire.Exec{Command: "true"})
	for _, tt := range []struct {
		name    string
		client  *ssh.Client
		files   int // negative: a batch that never arrives
		request string
		payload []byte
		again   bool // a second time on the same channel
		want    bool
	}{
		{"exec", client, 3, "exec", exec, false, true},
		{"shell", client, 3, "shell", nil, false, true},
		{"subsystem", client, 3, "subsystem", wire.Marshal(wire.Subsystem{Name: "sftp"}), false, true},
		{"unknown subsystem", client, 3, "subsystem", wire.Marshal(wire.Subsystem{Name: "other"}), false, false},
		{"nothing came", client, -1, "exec", exec, false, false},
		{"too few", client, 2, "exec", exec, false, false},
		{"for a terminal", client, 1, "exec", exec, false, false},
		{"no terminal", client, 1, "pty-req", pty, false, false},
		{"pipes for a terminal", client, 3, "pty-req", pty, false, false},
		{"another request", client, 3, "env", wire.Marshal(wire.Env{Name: "LANG", Value: "C"}), false, false},
		{"itself", client, 3, wire.DescriptorsRequest, wire.Marshal(wire.Descriptors{}), false, false},
		{"malformed inside", client, 3, "exec", []byte("x"), false, false},
		{"once more", client, 3, "exec", exec, true, false},
		{"over TCP", tcp, -1, "exec", exec, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ch, reqs, err := tt.client.OpenChannel(wire.ChannelSession, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer ch.Close()
			go ssh.DiscardRequests(reqs)
			ask := func() bool {
				batch := uint64(1) << 40
				if tt.files >= 0 {
					if batch, err = files.Pass(pipes(t, tt.files)...); err != nil {
						t.Fatal(err)
					}
				}
				ok, err := ch.SendRequest(wire.DescriptorsRequest, true,
					wire.Marshal(wire.Descriptors{Batch: batch, Request: tt.request,
						Payload: tt.payload}))
				if err != nil && !tt.again { // the program may have ended by then, with its channel
					t.Fatal(err)
				}
				return ok && err == nil
			}
			ok := ask()
			if tt.again {
				if !ok {
					t.Error("the first one was refused")
				}
				ok = ask()
			}
			if ok != tt.want {
				t.Errorf("got %v, want %v", ok, tt.want)
			}
		})
	}
	ch, reqs, err := client.OpenChannel(wire.ChannelSession, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest(wire.DescriptorsRequest, true, []byte("x")); err != nil || ok {
		t.Errorf("malformed: %v, %v", ok, err)
	}
}

// The guest answers an offer of descriptors with one, and only where descriptors can be passed.
func TestOffer(t *testing.T) {
	s := newSandbox(t)
	client, files := s.dialPassing(t)
	ask := func(c *ssh.Client, batch uint64) (bool, []byte) {
		t.Helper()
		ok, answer, err := c.SendRequest(wire.DescriptorsRequest, true,
			wire.Marshal(wire.Descriptors{Batch: batch}))
		if err != nil {
			t.Fatal(err)
		}
		return ok, answer
	}
	if ok, _ := ask(client, 0); ok {
		t.Error("taken without any")
	}
	if ok, _ := ask(s.dial(t), 0); ok {
		t.Error("taken over TCP")
	}
	if ok, _, err := client.SendRequest(wire.DescriptorsRequest, true, []byte("x")); ok ||
		err != nil {
		t.Errorf("malformed: %v, %v", ok, err)
	}
	for range 3 {
		batch, err := files.Pass(pipes(t, 1)...)
		if err != nil {
			t.Fatal(err)
		}
		ok, answer := ask(client, batch)
		var came wire.Descriptors
		if !ok || wire.Unmarshal(answer, &came) != nil {
			t.Fatalf("got %v, %q", ok, answer)
		}
		got := files.Take(came.Batch)
		if len(got) != 1 {
			t.Fatalf("%d descriptors came", len(got))
		}
		if flags, err := unix.FcntlInt(uintptr(got[0]), unix.F_GETFL, 0); err != nil ||
			flags&unix.O_PATH == 0 {
			t.Errorf("flags %#x, %v: want a name, not an open file", flags, err)
		}
		stdio.CloseAll(got...)
	}
}
