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

// pageJSON is a way into the page.
type pageJSON struct {
	URL     string    `json:"url"`
	Good    time.Time `json:"good_until"` // the link
	Expires time.Time `json:"expires"`    // the login
}

func pageCommand(env *Env) *cobra.Command {
	var asJSON, watch bool
	var expires, base string
	cmd := &cobra.Command{
		Use:   "page",
		Short: "print a one-time login link to the web dashboard",
		Long: "Print a link that logs a browser in to the page, once and within a minute: sandboxes and what they need, terminals to\n" +
			"watch and to take over, records to play. The login is a token of yours: sandboxd token lists and revokes it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if env.HTTP == "" {
				return &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon has no HTTP door", Hint: "start it with --http 127.0.0.1:8022"}
			}
			if base == "" {
				base = reachable(env.HTTP)
			}
			u, err := url.Parse(base)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
				return usage("--url %q: write it as https://box.example", base)
			}
			age, err := ParseAge(expires)
			if err != nil || age <= 0 {
				return usage("--expires %q: write a time as 12h or 7d", expires)
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
			link := u.Scheme + "://" + u.Host + "/#code=" + code
			if asJSON {
				return env.printJSON(pageJSON{URL: link, Good: now.Add(token.CodeTime).Truncate(time.Millisecond), Expires: *t.Expires})
			}
			fmt.Fprintln(env.Stdout, link)
			return nil
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "the login may only look")
	cmd.Flags().StringVar(&expires, "expires", "12h", "for how long the login is good, as 12h or 7d")
	cmd.Flags().StringVar(&base, "url", "", "where browsers reach the daemon, as https://box.example; empty is where it listens")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// reachable is an address to listen on as a browser on the same machine can ask for it.
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
