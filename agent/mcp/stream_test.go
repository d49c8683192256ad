package mcp_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/agent/mcp"
)

// What is no MCP ends the connection, and nothing hangs.
func TestGarbage(t *testing.T) {
	g := agenttest.New(t)
	for _, text := range []string{"hello\n", "{\"jsonrpc\":\"2.0\"}\n", "[]\n", "\x00\xff\n",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":"` +
			strings.Repeat("x", 9<<20)} {
		rw := serve(t, mcp.Options{Gateway: g, Sandbox: "box"})
		go func() {
			_, _ = io.WriteString(rw, text)
			if c, ok := rw.(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite()
			}
		}()
		done := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, rw)
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(patience):
			t.Errorf("%.40q leaves it open", text)
			rw.Close()
			<-done
		}
	}
}

// A client that sends nothing more is answered what it asked.
func TestHalfClosed(t *testing.T) {
	rw := serve(t, mcp.Options{Gateway: agenttest.New(t), Sandbox: "box"})
	_, err := io.WriteString(rw, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run","arguments":{"command":"echo said"}}}
`)
	if err != nil {
		t.Fatal(err)
	}
	if err := rw.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(rw)
	if err != nil || !strings.Contains(string(all), `"output":"said\n"`) {
		t.Errorf("%v, %s", err, all)
	}
}

// A client that asks and asks and reads no answer is not read any further: what it is owed stays
// small.
func TestNeverReads(t *testing.T) {
	g := agenttest.New(t)
	for _, method := range []string{"tools/list", "tools/call", "ping"} {
		t.Run(method, func(t *testing.T) {
			rw := serve(t, mcp.Options{Gateway: g, Sandbox: "box"}).(net.Conn)
			if err := rw.SetWriteDeadline(time.Now().Add(3 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, err := io.WriteString(rw,
				`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`+"\n")
			sent := 0
			for i := 0; err == nil && sent < 16<<20; i++ {
				var n int
				n, err = fmt.Fprintf(rw,
					`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"name":"sandboxes","x":"%s"}}`+
						"\n", i, method, strings.Repeat("x", 2000))
				sent += n
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes of calls were taken, and no answer was: %v", sent, err)
			}
		})
	}
}
