package main

import (
	"os"
	"strings"
	"testing"
)

// What programs send that speak Jupyter's protocol is answered by a real server in a sandbox without a network.
func TestJupyter(t *testing.T) {
	python, _ := requireSDKs(t)
	m := newMachine(t)
	m.start("--http", "127.0.0.1:0")
	m.lobby("new --image sandboxd/python --network none notebooks")
	secret, err := os.ReadFile(*m.at.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + m.sdk(t, python, "jupyter.py", *m.at.HTTP, strings.TrimSpace(string(secret)), "notebooks"))
}
