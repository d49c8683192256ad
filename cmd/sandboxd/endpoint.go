package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// endpoint describes how clients reach a daemon. serve --json prints it on one line, and the state
// directory has it in a file for clients on this machine. Paths are absolute.
type endpoint struct {
	SSH        string  `json:"ssh"`
	HTTP       *string `json:"http"`       // null if the HTTP API is disabled
	TokenFile  *string `json:"token_file"` // null if the HTTP API is disabled
	KnownHosts string  `json:"known_hosts"`
	Identity   string  `json:"identity"`
	State      string  `json:"state"`
	PID        int     `json:"pid"`
	Version    string  `json:"version"`
	Commit     string  `json:"commit"` // that the daemon was built from; "" if it does not say

	Trusts []trust `json:"trusts,omitempty"` // set by the run that creates authorized_keys
}

// trust is a key that a first run accepts.
type trust struct {
	Fingerprint string `json:"fingerprint"`
	Why         string `json:"why"`
}

const endpointFile = "endpoint.json"

func readEndpoint(state string) (endpoint, error) {
	var e endpoint
	text, err := os.ReadFile(filepath.Join(state, endpointFile))
	if err != nil {
		return e, fmt.Errorf("endpoint: %w", err)
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return e, fmt.Errorf("endpoint %s: %w", filepath.Join(state, endpointFile), err)
	}
	return e, nil
}

// write replaces the endpoint file atomically.
func (e endpoint) write() error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := writeDurably(filepath.Join(e.State, endpointFile), append(text, '\n'),
		0o600); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	return nil
}

// address returns where clients on this machine connect to: the loopback address for a daemon on
// all addresses, because known_hosts has no key for an unspecified one.
func (e endpoint) address() string {
	host, port, err := net.SplitHostPort(e.SSH)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return e.SSH
	}
	return net.JoinHostPort("127.0.0.1", port)
}

func (e endpoint) remove() { os.Remove(filepath.Join(e.State, endpointFile)) }
