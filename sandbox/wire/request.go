package wire

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// ReadRequest reads the request in the data of a [FrameRequest]. What is not JSON, or not UTF-8, is refused with usage: JSON would
// put U+FFFD in the place of each byte that is not UTF-8, and another command than the client's would run.
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

// maxRequest is the most bytes of a request's JSON: a frame has its type and the request's number besides.
const maxRequest = MaxFrame - 64

// frame is the data of a [FrameRequest] with r.
func (r Request) frame() ([]byte, *Error) {
	if refused := r.checkText(); refused != nil {
		return nil, refused
	}
	data, err := plainJSON(r)
	if err != nil {
		return nil, Errorf(CodeUsage, "%s: %v", r.Verb, err)
	}
	if len(data) > maxRequest {
		e := Errorf(CodeUsage, "%s: the request has %d bytes, and may have %d at most", r.Verb, len(data), maxRequest)
		e.Hint = "copy the text into the sandbox as a file"
		return nil, e
	}
	return data, nil
}

// checkText refuses text and keys that are not UTF-8, before JSON replaces them.
func (r Request) checkText() *Error {
	for _, s := range append([]string{r.Text}, r.Keys...) {
		if !utf8.ValidString(s) {
			return notUTF8(string(r.Verb), s)
		}
	}
	return nil
}

// notUTF8 is the refusal of s, in which at least one byte is not UTF-8.
func notUTF8(what, s string) *Error {
	at := 0
	for at < len(s) {
		c, n := utf8.DecodeRuneInString(s[at:])
		if c == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	e := Errorf(CodeUsage, "%s: the text is not valid UTF-8: byte %#02x at offset %d", what, s[at], at)
	e.Hint = fmt.Sprintf(`write it as an escape for printf or $'...', such as '\%03o'; exec and raw input take any bytes`, s[at])
	return e
}
