// Package wire is what crosses a connection: the names by which people and programs address a sandbox, the frames of
// the session stream, Result and State, exit codes, and the payloads of RFC 4254 that a relay has to read.
//
// It holds data and its encoding, no behaviour of a session and no connection of its own making. The published form of
// these words is docs/protocol.md.
package wire

// Version is the version of the session stream that this code speaks, and MinVersion the oldest that it understands:
// running sandboxes keep the guest that they were started with.
const (
	Version    = 1
	MinVersion = 1
)

// SSH names of our own.
const (
	SessionSubsystem = "session@sandboxd" // the session stream, on a session channel
	ControlRequest   = "control@sandboxd" // global request of the daemon to the guest, payload JSON Control
)
