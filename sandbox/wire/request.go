package wire

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// ReadRequest parses the data of a [FrameRequest]. Invalid JSON and invalid UTF-8 return an error
// with code usage: JSON decoding would replace invalid bytes by U+FFFD, and a different command
// would run.
func ReadRequest(data []byte) (Request, *Error) {
	if !utf8.Valid(data) {
		return Request{}, notUTF8("request", string(data))
	}
	var r Request
	if err := json.Unmarshal(data, &r); err != nil {
		return Request{}, Errorf(CodeUsage, "request: %v", err)
	}
	return r, nil
}

// maxRequest is the maximal length of a request's JSON, within a frame that also has its type and
// ID.
const maxRequest = MaxFrame - 64

// frame returns the data of a [FrameRequest] for r.
func (r Request) frame() ([]byte, *Error) {
	if refused := r.checkText(); refused != nil {
		return nil, refused
	}
	data, err := plainJSON(r)
	if err != nil {
		return nil, Errorf(CodeUsage, "%s: %v", r.Verb, err)
	}
	if len(data) > maxRequest {
		e := Errorf(
			CodeUsage,
			"%s: the request has %d bytes, limit %d",
			r.Verb,
			len(data),
			maxRequest,
		)
		e.Hint = "copy the text into the sandbox as a file"
		return nil, e
	}
	return data, nil
}

// checkText rejects text and keys with invalid UTF-8, which JSON would replace.
func (r Request) checkText() *Error {
	for _, s := range append([]string{r.Text}, r.Keys...) {
		if !utf8.ValidString(s) {
			return notUTF8(string(r.Verb), s)
		}
	}
	return nil
}

// notUTF8 returns the error for s, which has an invalid byte.
func notUTF8(what, s string) *Error {
	at := 0
	for at < len(s) {
		c, n := utf8.DecodeRuneInString(s[at:])
		if c == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	e := Errorf(
		CodeUsage,
		"%s: the text is not valid UTF-8: byte %#02x at offset %d",
		what,
		s[at],
		at,
	)
	e.Hint = fmt.Sprintf(
		`write it as an escape for printf or $'...', such as '\%03o'; exec and raw input take any bytes`,
		s[at],
	)
	return e
}
