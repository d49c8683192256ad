package command

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pageJSON is a login link in page --json.
type pageJSON struct {
	URL     string    `json:"url"`
	Good    time.Time `json:"good_until"` // when the link expires
	Expires time.Time `json:"expires"`    // when the login expires
}

func pageCommand(env *Env) *cobra.Command {
	var asJSON, watch bool
	var expires, base string
	cmd := &cobra.Command{
		Use:   "page",
		Short: "print a one-time login link to the web dashboard",
		Long: "Print a link that logs a browser in to the web dashboard. The link works once,\n" +
			"within a minute. The dashboard lists your sandboxes and what needs attention,\n" +
			"shows live terminals, and replays recordings. The login is a token: list and\n" +
			"revoke it with sandboxd token.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			base, err := env.dashboard(base)
			if err != nil {
				return err
			}
			age, err := ParseAge(expires)
			if err != nil || age <= 0 {
				return usage("--expires %q: write a duration such as 12h or 7d", expires)
			}
			now := time.Now()
			t, err := env.newToken(wire.Person, watch, age)
			if err != nil {
				return err
			}
			t.Label = "page"
			code, err := env.Tokens.Code(t)
			if err != nil {
				return err
			}
			link := base + "/#code=" + code
			if asJSON {
				return env.printJSON(pageJSON{URL: link,
					Good: now.Add(token.CodeTime).Truncate(time.Millisecond), Expires: *t.Expires})
			}
			fmt.Fprintln(env.Stdout, link)
			return nil
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "make the login read-only")
	cmd.Flags().StringVar(&expires, "expires", "12h", "lifetime of the login, such as 12h or 7d")
	urlFlag(cmd, &base)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// urlFlag adds the flag for the argument of dashboard.
func urlFlag(cmd *cobra.Command, base *string) {
	cmd.Flags().StringVar(base, "url", "",
		"URL at which browsers reach the daemon, such as https://box.example (default: where it "+
			"listens)")
}

// dashboard returns the start of a link to the dashboard: base, as a user wrote it, or where the
// daemon listens.
func (env *Env) dashboard(base string) (string, error) {
	if env.HTTP == "" {
		return "", &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: "HTTP API: not enabled",
			Hint:    "start the daemon with --http 127.0.0.1:8022",
		}
	}
	if base == "" {
		base = reachable(env.HTTP)
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return "", usage("--url %q: write a URL without a path, such as https://box.example", base)
	}
	return u.Scheme + "://" + u.Host, nil
}

// reachable returns the URL with which a browser on the same machine reaches a listen address.
func reachable(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return base
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
		u.Host = net.JoinHostPort("localhost", u.Port())
	}
	return u.String()
}
