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

// interfaces counts those that the stories of this process made, of which some run at once.
var interfaces atomic.Int64

// closedCmd gives this machine an address more, on an interface of the story's own, with a listener behind it that is to be
// reached by nobody who may not: $CLOSED is where it listens, $FREE_PORT a port of the loopback that is free. With the argument "reached N"
// it says how often the listener was reached.
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
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // #nosec G112 -- for as long as a story
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
