package python

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// subprotocol is the form of messages in which the server hands on what the kernel wrote. Without it the server takes every message apart
// and writes it anew as one JSON object, which is a seventh of all the work that `1+1` makes; older servers know nothing else.
//
// A frame is binary: the number of offsets, the offsets, and what lies between each and the next one: the channel's name, and in JSON header,
// parent header, metadata and content, then buffers. Numbers are of 8 bytes, the least significant first. See "WebSocket protocols" in the
// documentation of Jupyter Server.
const subprotocol = "v1.kernel.websocket.jupyter.org"

const (
	frameParts = 5                    // that have a meaning here, the channel's name among them
	frameHead  = 8 * (frameParts + 2) // bytes of the least that a frame begins with
)

// frame is a message that we send.
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

var errFrame = errors.New("message of the kernel: no frame")

// unframe reads one that came; it may be anything. Of a frame that was cut off it reads what is there, and its Content is cut off, too. Content
// is a part of text.
func unframe(text []byte) (message, error) {
	var m message
	if len(text) < frameHead {
		return m, errFrame
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	var parts [frameParts][]byte
	if number(0) < frameParts+1 { // more are those of buffers
		return m, errFrame
	}
	for i := range parts {
		from, to := number(i+1), number(i+2)
		if i == frameParts-1 {
			to = min(to, uint64(len(text))) // cut off
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
