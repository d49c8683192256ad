package attention

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Each service gets what its documentation asks for, and the text of a program as text.
func TestMessages(t *testing.T) {
	const line = "<!channel> **x** [a](http://evil) `rm` @everyone & ?"
	for format, c := range map[string]struct {
		query string
		want  string // of the decoded body
	}{
		FormatNtfy:     {"", line},
		FormatSlack:    {"", "*demo asks*\n```\n&lt;!channel&gt; **x** [a](http://evil) 'rm' @everyone &amp; ?\n```"},
		FormatDiscord:  {"", "**demo asks**\n```\n<!channel> **x** [a](http://evil) 'rm' @everyone & ?\n```"},
		FormatTelegram: {"?chat_id=-17", "demo asks\n" + line},
	} {
		t.Run(format, func(t *testing.T) {
			var got, title string
			var all map[string]any
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
				r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || r.URL.Path != "/in" || r.URL.RawQuery != "" {
					t.Errorf("%v, %v", r.URL, err)
				}
				got, title = string(body), r.Header.Get("Title")
				if json.Unmarshal(body, &all) == nil {
					for _, key := range []string{"text", "content"} {
						if s, ok := all[key].(string); ok {
							got = s
						}
					}
				}
			}))
			defer server.Close()
			h := NewHook(HookOptions{URL: server.URL + "/in" + c.query, Format: format},
				NewBoard(func(string) []Session { return nil }), slog.New(slog.DiscardHandler))
			n := Notice{Need: Need{Sandbox: "demo", Session: wire.DefaultSession, Needs: Answer,
				LastLine: line}}
			for _, quiet := range []Notice{
				{Need: Need{Sandbox: "demo", Session: "main", Needs: Answer, Watched: true}},
				{Need: Need{Sandbox: "demo", Session: "main"}, Was: Answer},
				{Need: Need{Sandbox: "demo", Session: "main", Needs: Answer, Gone: true}},
			} {
				if h.call(t.Context(), quiet); got != "" {
					t.Errorf("a message about %+v: %s", quiet, got)
				}
			}
			h.call(t.Context(), n)
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if format == FormatNtfy && title != "demo asks" {
				t.Errorf("title %q", title)
			}
			if format == FormatTelegram {
				code, err := json.Marshal(all["entities"])
				if err != nil || all["chat_id"] != "-17" || string(code) !=
					`[{"length":52,"offset":10,"type":"pre"}]` {
					t.Errorf("%v, %s, %v", all, code, err)
				}
			}
			if h.Counts() != (HookCounts{Delivered: 1}) {
				t.Errorf("%+v", h.Counts())
			}
		})
	}
}

// A signature is that of Standard Webhooks; all tries of a message have one id. A log has no part
// of a URL that may be a secret.
func TestSignature(t *testing.T) {
	key := []byte(strings.Repeat("k", 32))
	ids := make(map[string]bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := r.Header.Get("webhook-id")
		ids[id] = true
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + r.Header.Get("webhook-timestamp") + "." + string(body)))
		want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		if got := r.Header.Get("webhook-signature"); got != want || id == "" {
			t.Errorf("id %q, signature %q, want %q", id, got, want)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	var log strings.Builder
	h := NewHook(HookOptions{URL: server.URL + "/s3cret",
		Secret: "whsec_" + base64.StdEncoding.EncodeToString(key), Retry: time.Millisecond},
		NewBoard(func(string) []Session { return nil }), slog.New(slog.NewTextHandler(&log, nil)))
	h.call(t.Context(), Notice{Need: Need{Sandbox: "demo", Session: "main", Needs: Answer}})
	if len(ids) != 1 {
		t.Errorf("ids %v", ids)
	}
	server.Close()
	h.call(t.Context(), Notice{Need: Need{Sandbox: "demo", Session: "main", Needs: Answer}})
	if h.Counts().Failed != 2 || strings.Contains(log.String(), "s3cret") {
		t.Errorf("%+v\n%s", h.Counts(), log.String())
	}
	wrong := NewHook(HookOptions{URL: server.URL, Secret: "whsec_"},
		NewBoard(func(string) []Session { return nil }), slog.New(slog.NewTextHandler(&log, nil)))
	wrong.call(t.Context(), Notice{Need: Need{Sandbox: "demo", Session: "main", Needs: Answer}})
	if !strings.Contains(log.String(), "nothing is sent unsigned") {
		t.Errorf("with a wrong secret: %s", log.String())
	}
	for _, secret := range []string{"secret", "whsec_", "whsec_###", "whsec_c2hvcnQ=",
		base64.StdEncoding.EncodeToString(key)} {
		if _, err := CheckSecret(secret); err == nil {
			t.Errorf("%q was accepted", secret)
		}
	}
	if CheckURL(FormatTelegram, "https://api.telegram.org/botX/sendMessage") == nil {
		t.Error("telegram without a chat was accepted")
	}
}

// A message of ntfy is deleted when its need ends or another begins, once. That an earlier server
// cannot do that does not count; other services get nothing.
func TestWithdraw(t *testing.T) {
	for _, c := range []struct {
		format string
		status int // of a deletion
		want   string
	}{
		{FormatNtfy, http.StatusOK, "POST DELETE POST DELETE"},
		{FormatNtfy, http.StatusNotFound, "POST DELETE POST DELETE"},
		{FormatSlack, http.StatusOK, "POST POST"},
	} {
		var got []string
		var id string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			got = append(got, r.Method)
			switch {
			case r.URL.RawQuery != "auth=x":
				t.Errorf("%v", r.URL)
			case r.Method == http.MethodPost:
				id = r.Header.Get("X-Sequence-ID")
			case r.URL.Path != "/topic/"+id:
				t.Errorf("deletes %s, not %s", r.URL.Path, id)
			default:
				w.WriteHeader(c.status)
			}
		}))
		h := NewHook(HookOptions{URL: server.URL + "/topic?auth=x", Format: c.format},
			NewBoard(func(string) []Session { return nil }), slog.New(slog.DiscardHandler))
		for _, need := range []Kind{Answer, Rest, None, None} {
			h.call(t.Context(), Notice{Need: Need{Sandbox: "demo", Session: "main", Needs: need}})
		}
		if strings.Join(got, " ") != c.want || h.Counts() != (HookCounts{Delivered: 2}) {
			t.Errorf("%s, %d: %v, %+v", c.format, c.status, got, h.Counts())
		}
		server.Close()
	}
}
