package python

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// subprotocol is the WebSocket subprotocol with which the server forwards messages of the kernel
// unchanged, as binary frames. Without it, the server decodes each message and encodes it as one
// JSON object, which costs a seventh of the work of a short call. Older servers support only that.
//
// A frame has the number of offsets, the offsets, and the parts between them: the name of the
// channel; header, parent header, metadata and content as JSON; and buffers. Numbers have 8 bytes,
// little-endian. See "WebSocket protocols" in the documentation of Jupyter Server.
const subprotocol = "v1.kernel.websocket.jupyter.org"

const (
	frameParts = 5                    // used parts, including the name of the channel
	frameHead  = 8 * (frameParts + 2) // minimal length of the head of a frame in bytes
)

// frame encodes a message to send.
func frame(channel string, header, parent, metadata, content []byte) []byte {
	parts := [frameParts][]byte{[]byte(channel), header, parent, metadata, content}
	text := binary.LittleEndian.AppendUint64(nil, frameParts+1)
	at := uint64(frameHead)
	text = binary.LittleEndian.AppendUint64(text, at)
	for _, p := range parts {
		at += uint64(len(p))
		text = binary.LittleEndian.AppendUint64(text, at)
	}
	return append(text, bytes.Join(parts[:], nil)...)
}

var errFrame = errors.New("message of the kernel: invalid frame")

// unframe parses an untrusted frame. A truncated frame is accepted; its Content is truncated, too.
// Content shares the memory of text.
func unframe(text []byte) (message, error) {
	var m message
	if len(text) < frameHead {
		return m, errFrame
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	var parts [frameParts][]byte
	if number(0) < frameParts+1 { // further offsets are those of buffers
		return m, errFrame
	}
	for i := range parts {
		from, to := number(i+1), number(i+2)
		if i == frameParts-1 {
			to = min(to, uint64(len(text))) // truncated
		}
		if from < frameHead || from > to || to > uint64(len(text)) {
			return m, errFrame
		}
		parts[i] = text[from:to]
	}
	m.Channel, m.Content = string(parts[0]), parts[4]
	for i, h := range []*header{&m.Header, &m.Parent} {
		if err := json.Unmarshal(parts[i+1], h); err != nil {
			return m, fmt.Errorf("message of the kernel: %w", err)
		}
	}
	if m.Header.Type == "" {
		return m, errNoType
	}
	return m, nil
}
