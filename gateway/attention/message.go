package attention

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The formats of what a URL receives. FormatJSON is a Notice of each change. The others are
// messages for people: one when a need begins, none while a person is attached to the session. That
// of ntfy is withdrawn when the need ends.
const (
	FormatJSON     = "json"
	FormatNtfy     = "ntfy"     // https://docs.ntfy.sh/publish
	FormatSlack    = "slack"    // an incoming webhook
	FormatDiscord  = "discord"  // a webhook
	FormatTelegram = "telegram" // sendMessage of a bot, with chat_id in the URL's query
)

// secretPrefix begins a secret of Standard Webhooks, before its base64.
const secretPrefix = "whsec_"

// CheckSecret returns the key of a secret as Standard Webhooks has them: whsec_, and base64 of 24
// to 64 bytes. The key of an empty secret is nil.
func CheckSecret(secret string) (key []byte, err error) {
	if secret == "" {
		return nil, nil
	}
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if ok {
		key, err = base64.StdEncoding.DecodeString(text)
	}
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, errors.New(
			"not a secret of Standard Webhooks; write what this prints: " +
				"echo whsec_$(openssl rand -base64 32)")
	}
	return key, nil
}

// CheckURL returns an error if a format cannot use a URL that is otherwise right.
func CheckURL(format, address string) error {
	if format != FormatTelegram || address == "" {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Query().Get("chat_id") == "" {
		return errors.New("no chat for telegram; write " +
			"https://api.telegram.org/botTOKEN/sendMessage?chat_id=NUMBER")
	}
	return nil
}

// silent reports whether n is no message for people: the end of a need, or of a session that a
// person watches.
func silent(n Notice) bool { return n.Needs == None || n.Gone || n.Watched }

// words say what the session needs.
func (n Need) words() string {
	switch n.Needs {
	case Answer:
		if n.Want == wire.WantPassword {
			return "asks for a password"
		}
		return "asks"
	case Allow:
		return "was denied a connection"
	case Rest:
		return "needs attention"
	case Shell:
		return "has ended: " + strings.TrimPrefix(n.Label(), string(Shell)+":")
	}
	return string(n.Needs)
}

// request returns the body and the header of a POST about n. The text of a program has no markup
// and mentions nobody.
func (h *Hook) request(n Notice, notice []byte) (address string, body []byte, header http.Header,
	err error) {
	header = http.Header{"Content-Type": {"application/json"}, "User-Agent": {"sandboxd"}}
	title := n.Target().String() + " " + n.words()
	address = h.options.URL
	var v any
	switch h.options.Format {
	case FormatNtfy:
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Title", title)
		return address, []byte(n.LastLine), header, nil // ntfy has a text for an empty one
	case FormatSlack:
		quoted := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'").Replace(
			n.LastLine)
		v = map[string]any{"text": "*" + title + "*" + fenced(quoted), "unfurl_links": false,
			"unfurl_media": false}
	case FormatDiscord:
		v = map[string]any{
			"content":          "**" + title + "**" + fenced(strings.ReplaceAll(n.LastLine, "`", "'")),
			"allowed_mentions": map[string]any{"parse": []string{}}}
	case FormatTelegram:
		u, err := url.Parse(address)
		if err != nil {
			return "", nil, nil, errors.New("the URL is wrong")
		}
		text := title
		var code []map[string]any // text in which Telegram finds no names and no addresses
		if n.LastLine != "" {
			text += "\n" + n.LastLine
			code = []map[string]any{{"type": "pre", "offset": units(title + "\n"),
				"length": units(n.LastLine)}}
		}
		v = map[string]any{"chat_id": u.Query().Get("chat_id"), "text": text, "entities": code}
		u.RawQuery = ""
		address = u.String()
	default:
		return address, notice, header, nil
	}
	if body, err = json.Marshal(v); err != nil {
		return "", nil, nil, fmt.Errorf("message: %w", err)
	}
	return address, body, header, nil
}

// units returns the length of s in UTF-16, in which Telegram counts.
func units(s string) int { return len(utf16.Encode([]rune(s))) }

// fenced returns a line as code of its own, which is not marked up.
func fenced(line string) string {
	if line == "" {
		return ""
	}
	return "\n```\n" + line + "\n```"
}

// sign adds the headers of Standard Webhooks (github.com/standard-webhooks): an id that is the same
// for all tries of a message, the time, and HMAC-SHA256 of both and the body.
func (h *Hook) sign(header http.Header, id string, body []byte) {
	if h.key == nil {
		return
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, h.key)
	_, _ = mac.Write(slices.Concat([]byte(id+"."+at+"."), body)) // never fails
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", at)
	header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// post sends a message about n, and repeats it after a failure that may pass.
func (h *Hook) post(ctx context.Context, n Notice, notice []byte) error {
	if h.options.Secret != "" && h.key == nil {
		return errors.New("the secret is wrong, so nothing is sent unsigned")
	}
	address, body, header, err := h.request(n, notice)
	if err != nil {
		return err
	}
	id := "msg_" + rand.Text()
	if h.options.Format == FormatNtfy {
		header.Set(ntfyID, id)
	}
	err = h.send(ctx, http.MethodPost, address, id, body, header, hookTries)
	if err == nil && h.options.Format == FormatNtfy {
		h.mu.Lock()
		h.shown[n.Target().String()] = id
		h.mu.Unlock()
	}
	return err
}

// ntfyID is the header with an ID of ours for a message, by which it can be deleted.
const ntfyID = "X-Sequence-ID"

// withdraw deletes the message about an earlier need of a session, if one was sent and the service
// can do that: ntfy from 2.16 on. Earlier ones fail. After a restart the message stays.
func (h *Hook) withdraw(ctx context.Context, session string) error {
	h.mu.Lock()
	id := h.shown[session]
	delete(h.shown, session)
	h.mu.Unlock()
	if id == "" {
		return nil
	}
	u, err := url.Parse(h.options.URL)
	if err != nil {
		return errors.New("the URL is wrong")
	}
	header := http.Header{"User-Agent": {"sandboxd"}}
	// One try: the next message waits for it.
	return h.send(ctx, http.MethodDelete, u.JoinPath(id).String(), id, nil, header, 1)
}

// send sends a request, and repeats it after a failure that may pass.
func (h *Hook) send(ctx context.Context, method, address, id string, body []byte,
	header http.Header, tries int) error {
	for try, pause := 1, h.options.Retry; ; try, pause = try+1, 2*pause {
		h.sign(header, id, body)
		again, err := h.sendOnce(ctx, method, address, body, header)
		if err == nil || !again || try == tries {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *Hook) sendOnce(ctx context.Context, method, address string, body []byte,
	header http.Header) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.options.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("%s: %w", strings.ToLower(method), err)
	}
	req.Header = header
	resp, err := h.client.Do(req)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		// The path of a URL may be a secret, as Slack's and Telegram's are.
		return true, fmt.Errorf("%s to %s: %w", strings.ToLower(method), req.URL.Host, failed.Err)
	}
	if err != nil {
		return true, fmt.Errorf("%s to %s: %w", strings.ToLower(method), req.URL.Host, err)
	}
	defer resp.Body.Close()
	// So that the connection can be reused.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch {
	case resp.StatusCode/100 == 2:
		return false, nil
	case resp.StatusCode/100 == 5, resp.StatusCode == http.StatusTooManyRequests,
		resp.StatusCode == http.StatusRequestTimeout:
		again = true
	}
	return again, errors.New(strings.ToLower(method) + ": status " + resp.Status)
}
