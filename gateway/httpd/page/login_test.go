package page

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/token"
)

// For any request, Secret returns text in the form of a token, or "". A socket without Origin has
// no token.
func FuzzSecret(f *testing.F) {
	f.Add("00ff00ff00ff00ff00ff00ff00ff00ff", "ff00ff00ff00ff00ff00ff00ff00ff00",
		"sandboxd.page, key.00ff00ff00ff00ff00ff00ff00ff00ff", true, "http://127.0.0.1:8022")
	f.Add("", "", "key.,key.x", true, "")
	f.Add("zz", "0", "", false, "null")
	f.Fuzz(func(t *testing.T, key, cookie, protocols string, socket bool, origin string) {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:8022/page/live",
			nil)
		r.Header.Set("X-Sandboxd-Key", key)
		r.Header.Set("Cookie", "sandboxd_8022="+cookie)
		r.Header.Set("Sec-WebSocket-Protocol", protocols)
		r.Header.Set("Origin", origin)
		if socket {
			r.Header.Set("Upgrade", "WebSocket")
		}
		got := Secret(r)
		if got == "" {
			return
		}
		if socket && origin == "" {
			t.Error("a socket without an origin has a token")
		}
		if hex, ok := strings.CutPrefix(got, token.Prefix); !ok || hex == "" || len(hex)%2 != 0 ||
			strings.Trim(hex, "0123456789abcdef") != "" {
			t.Errorf("%q", got)
		}
	})
}

func TestSecret(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:8022/page/records/x",
		nil)
	r.Header.Set("X-Sandboxd-Key", "00ff00ff00ff00ff00ff00ff00ff00ff")
	r.Header.Set(
		"Cookie",
		"sandboxd_9022=00000000000000000000000000000000; "+
			"sandboxd_8022=ffffffffffffffffffffffffffffff00")
	if got, want := Secret(r), token.Prefix+"ff00ff00ff00ff00ff00ff00ff00ffff"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
