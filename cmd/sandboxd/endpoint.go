package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// endpoint is where a daemon answers: one line of serve --json, and a file in the state directory for clients on this
// machine. Paths are of files that clients use as they are.
type endpoint struct {
	SSH        string  `json:"ssh"`
	HTTP       *string `json:"http"`       // null where there is no HTTP door
	TokenFile  *string `json:"token_file"` // as HTTP
	KnownHosts string  `json:"known_hosts"`
	Identity   string  `json:"identity"`
	State      string  `json:"state"`
	PID        int     `json:"pid"`
	Version    string  `json:"version"`

	Trusts []trust `json:"trusts,omitempty"` // by the run that made authorized_keys
}

// trust is a key that a first run lets in.
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

// write puts the endpoint in place of an older one, whole.
func (e endpoint) write() error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := writeDurably(filepath.Join(e.State, endpointFile), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	return nil
}

func (e endpoint) remove() { os.Remove(filepath.Join(e.State, endpointFile)) }
