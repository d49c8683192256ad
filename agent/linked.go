package agent

import (
	"encoding/hex"
	"strings"
)

// linkScheme begins a link, with the path behind it.
const linkScheme = "sandbox:/"

// LinkedPath is the path that a link such as sandbox:/mnt/data/my%20plot.png names, as language models write them in their answers; of which
// sandbox it does not say. What begins otherwise is no link: ok is false. The path is absolute. %20 and the like are decoded; a % that begins no such
// code stays, because not every model encodes.
func LinkedPath(s string) (path string, ok bool) {
	rest, ok := strings.CutPrefix(s, linkScheme)
	if !ok {
		return "", false
	}
	b := []byte{'/'}
	for rest = strings.TrimLeft(rest, "/"); rest != ""; rest = rest[1:] { // sandbox:// and sandbox:/// are written as well
		if rest[0] == '%' && len(rest) >= 3 {
			if decoded, err := hex.DecodeString(rest[1:3]); err == nil {
				b = append(b, decoded...)
				rest = rest[2:]
				continue
			}
		}
		b = append(b, rest[0])
	}
	return string(b), true
}
