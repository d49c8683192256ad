package agent

import (
	"encoding/hex"
	"strings"
)

// linkScheme is the prefix of a link to a path.
const linkScheme = "sandbox:/"

// LinkedPath returns the path of a link such as sandbox:/mnt/data/my%20plot.png, which language
// models write for a file of their sandbox. ok is false if s is not such a link. The path is
// absolute. Escapes such as %20 are decoded. Any other % is kept, because not every model escapes
// paths.
func LinkedPath(s string) (path string, ok bool) {
	rest, ok := strings.CutPrefix(s, linkScheme)
	if !ok {
		return "", false
	}
	b := []byte{'/'}
	// models also write sandbox:// and sandbox:///
	for rest = strings.TrimLeft(rest, "/"); rest != ""; rest = rest[1:] {
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
