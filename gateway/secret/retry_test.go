package secret

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A command runs again after the server has rejected its value.
func TestBrokerCommand(t *testing.T) {
	var keys, bodies []string
	expired := make(map[string]bool)
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key := r.Header.Get("Authorization")
		keys, bodies = append(keys, key), append(bodies, string(body))
		if expired[key] {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}, func(s *Secret) {
		s.Source = Source{KindCmd, `sh -c 'echo key-$$'`}
	})
	client := w.client(false)
	long := strings.Repeat("x", maxKept+1)
	for _, tt := range []struct {
		name, body    string
		expires, soon bool
		want          int // requests at the server
		status        int
	}{
		{"first", "", false, false, 1, 200},
		{"again", "one", false, false, 1, 200},
		{"expired", "two", true, false, 2, 200},
		{"expired, without a body", "", true, false, 2, 200},
		{"expired soon after", "three", true, true, 1, 401},
		{"then", "four", false, false, 1, 200},
		{"expired, with a long body", long, true, false, 1, 401},
		{"then", "", false, false, 1, 200},
	} {
		runner := w.store.For("ann", "demo")[0].entry.runner
		runner.mu.Lock()
		if !tt.soon {
			runner.ran = time.Time{} // long ago
		}
		runner.mu.Unlock()
		if tt.expires {
			expired[keys[len(keys)-1]] = true
		}
		keys, bodies = nil, nil
		answer, err := client.Post("https://"+apiHost+"/", "text/plain", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if len(keys) != tt.want || answer.StatusCode != tt.status || bodies[0] != tt.body ||
			bodies[len(bodies)-1] != tt.body {
			t.Errorf("%s: got %s, with %q", tt.name, answer.Status, keys)
		}
	}
	s := secretOf("api", apiHost)
	s.Source = Source{KindCmd, "false"}
	w.set(s)
	answer, err := client.Get("https://" + apiHost + "/")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	answer.Body.Close()
	if answer.StatusCode != 502 || !bytes.Contains(body, []byte("exit status 1")) {
		t.Errorf("got %s, %s", answer.Status, body)
	}
}
