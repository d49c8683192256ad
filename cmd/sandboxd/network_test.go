package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/rogpeppe/go-internal/testscript"
)

// interfaces counts the interfaces of this process's stories, some of which run at the same time.
var interfaces atomic.Int64

// closedCmd adds an address to this machine, on the story's own interface, with a listener that
// sandboxes must not reach. It sets $CLOSED to the listener's address and $FREE_PORT to a free
// loopback port. "reached N" checks the number of its connections.
func closedCmd(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case neg:
		ts.Fatalf("usage: closed [reached N]")
	case len(args) == 2 && args[0] == "reached":
		counter, ok := ts.Value(reachedKey{}).(*atomic.Int64)
		if !ok {
			ts.Fatalf("there is no listener")
		}
		if got := counter.Load(); strconv.FormatInt(got, 10) != args[1] {
			ts.Fatalf("the closed address was reached %d times, want %s", got, args[1])
		}
		return
	case len(args) != 0:
		ts.Fatalf("usage: closed [reached N]")
	}
	if os.Getuid() != 0 {
		ts.Fatalf("an interface of one's own needs root: run the tests as root, or with sudo")
	}
	mine := os.Getpid()*4 + int(interfaces.Add(1)) // of this process and this story
	name := fmt.Sprintf("sbxt%d", mine%1000000)
	address := fmt.Sprintf("10.231.%d.%d", mine/64%256, mine%64*4+1)
	ts.Check(ts.Exec("ip", "link", "add", name, "type", "bridge"))
	ts.Defer(func() { _ = ts.Exec("ip", "link", "del", name) })
	ts.Check(ts.Exec("ip", "addr", "add", address+"/30", "dev", name))
	ts.Check(ts.Exec("ip", "link", "set", name, "up"))
	l, err := net.Listen("tcp", address+":0")
	ts.Check(err)
	counter, ok := ts.Value(reachedKey{}).(*atomic.Int64)
	if !ok {
		ts.Fatalf("the story was not set up")
	}
	// #nosec G112 -- for the time of a story
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		counter.Add(1)
		fmt.Fprintln(w, "a secret of the host")
	})}
	go func() { _ = server.Serve(l) }() // ends with Close
	ts.Defer(func() { server.Close() })
	ts.Setenv("CLOSED", l.Addr().String())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	_, port, err := net.SplitHostPort(free.Addr().String())
	ts.Check(err)
	free.Close()
	ts.Setenv("FREE_PORT", port)
}

type reachedKey struct{}
