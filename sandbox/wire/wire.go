// Package wire has the data that crosses a connection: names of sandboxes and sessions, the frames
// of the session stream, Result and State, exit codes, and the RFC 4254 payloads that a relay
// reads.
//
// The package has data and its encoding. It implements no session and opens no connection.
// docs/reference/protocol.md documents the protocol.
package wire

import "math"

// Version is the newest version of the session stream that this code supports, MinVersion the
// oldest. Running sandboxes keep the guest that they were started with.
const (
	Version    = 1
	MinVersion = 1
)

// Names of SSH extensions.
const (
	SessionSubsystem = "session@sandboxd" // the session stream, on a session channel
	// ChannelAlive means that channel that the daemon opens as a keepalive; a guest rejects it.
	ChannelAlive = "alive@sandboxd"
	// ControlRequest means that global request from the daemon to the guest; the payload is a
	// Control as JSON.
	ControlRequest = "control@sandboxd"

	// DescriptorsRequest means that DescriptorsRequest, from the daemon to the guest, announces
	// file descriptors that were passed with the bytes of the connection. Its payload is
	// Descriptors. As a global request without a named request, it tests with one descriptor
	// whether descriptors arrive. The reply is success if it arrived. The payload of the reply is
	// Descriptors, too: its batch is the guest's /dev/pts/ptmx, opened with O_PATH, or
	// NoDescriptors. On a session channel, it is the request that it names, with its payload and
	// reply: pty-req with the slave of the terminal; or shell, exec or subsystem without a
	// terminal, with the standard input, output and error of the program.
	DescriptorsRequest = "descriptors@sandboxd"
)

// Descriptors is the payload of DescriptorsRequest. Batch counts the batches that one side has
// passed on a connection, from 0.
type Descriptors struct {
	Batch   uint64
	Request string
	Payload []byte
}

// NoDescriptors is a Batch that means no descriptors.
const NoDescriptors = math.MaxUint64
