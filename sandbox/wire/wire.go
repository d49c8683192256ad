// Package wire is what crosses a connection: the names by which people and programs address a sandbox, the frames of
// the session stream, Result and State, exit codes, and the payloads of RFC 4254 that a relay has to read.
//
// It holds data and its encoding, no behaviour of a session and no connection of its own making. The published form of
// these words is docs/reference/protocol.md.
package wire

import "math"

// Version is the version of the session stream that this code speaks, and MinVersion the oldest that it understands:
// running sandboxes keep the guest that they were started with.
const (
	Version    = 1
	MinVersion = 1
)

// SSH names of our own.
const (
	SessionSubsystem = "session@sandboxd" // the session stream, on a session channel
	ChannelAlive     = "alive@sandboxd"   // channel that the daemon opens for a sign of life: a guest refuses it
	ControlRequest   = "control@sandboxd" // global request of the daemon to the guest, payload JSON Control

	// DescriptorsRequest, of the daemon to the guest, says that descriptors have come beside the connection's bytes; payload
	// Descriptors. As a global request it names no other request. With one descriptor, of anything, it asks whether they come at all: the answer is success where
	// that one came, and has itself a payload Descriptors: the batch is the guest's /dev/pts/ptmx, opened with O_PATH, or NoDescriptors where there is
	// none. On a session channel it is the request that it names, with that one's payload and answer: pty-req with the slave of the terminal, or a shell, exec or
	// subsystem without a terminal with what its program is to have for standard input, output and error.
	DescriptorsRequest = "descriptors@sandboxd"
)

// Descriptors is the payload of DescriptorsRequest. Batch counts what one side has passed on a connection, from 0.
type Descriptors struct {
	Batch   uint64
	Request string
	Payload []byte
}

// NoDescriptors is the number of no batch.
const NoDescriptors = math.MaxUint64
