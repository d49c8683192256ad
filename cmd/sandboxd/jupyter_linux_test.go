package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// A real server in a sandbox without a network answers programs with Jupyter's protocol.
func TestJupyter(t *testing.T) {
	python, _ := requireSDKs(t)
	m := newMachine(t)
	m.start("--http", "127.0.0.1:0")
	m.control("new --image sandboxd/python --network none notebooks")
	secret, err := os.ReadFile(*m.at.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + m.sdk(t, python, "jupyter.py", *m.at.HTTP, strings.TrimSpace(string(secret)),
		"notebooks"))

	// A revoked token closes the sockets that it opened, and no others.
	var made struct{ ID, Token string }
	if err := json.Unmarshal([]byte(m.control("token new --json jupyter")), &made); err != nil ||
		made.Token == "" {
		t.Fatal(err, made)
	}
	h := http.Header{"Authorization": {"token " + made.Token}}
	r, err := http.NewRequestWithContext(m.ctx(), http.MethodPost,
		*m.at.HTTP+"/jupyter/notebooks/api/kernels", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = h
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var kernel struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&kernel); err != nil || kernel.ID == "" {
		t.Fatal(err, resp.Status)
	}
	open := func(h http.Header) *websocket.Conn {
		c, _, err := websocket.Dial(m.ctx(),
			*m.at.HTTP+"/jupyter/notebooks/api/kernels/"+kernel.ID+"/channels",
			&websocket.DialOptions{HTTPHeader: h})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.CloseNow() })
		c.SetReadLimit(1 << 20)
		return c
	}
	c, other := open(h), open(http.Header{"Authorization": {"token " +
		strings.TrimSpace(string(secret))}})
	m.control("token rm " + made.ID)
	ctx, cancel := context.WithTimeout(m.ctx(), 5*time.Second)
	defer cancel()
	for err == nil {
		_, _, err = c.Read(ctx)
	}
	if websocket.CloseStatus(err) != 4401 {
		t.Errorf("its socket ended with %v", err)
	}
	if err := other.Write(ctx, websocket.MessageText,
		[]byte(
			`{"header":{"msg_id":"1","msg_type":"kernel_info_request","session":"s","username":"","version":"5.3"},"parent_header":{},"metadata":{},"channel":"shell","content":{}}`)); err != nil {
		t.Fatal(err)
	}
	for answered := false; !answered; {
		_, text, err := other.Read(ctx)
		if err != nil {
			t.Fatal("the other socket:", err)
		}
		answered = strings.Contains(string(text), "kernel_info_reply")
	}
}
