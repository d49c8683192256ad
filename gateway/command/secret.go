package command

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

func secretCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "set credentials that sandboxes use and never hold",
		Long: "Set, list and remove credentials that sandboxes use and never hold. Programs in\n" +
			"a sandbox connect to the host of a secret as usual. The daemon ends their TLS,\n" +
			"replaces the credential in each request, and sends it to the real server. So\n" +
			"programs can use any text as their key.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				e := usage("secret: unknown command %q", args[0])
				e.Hint = "use secret set, secret ls or secret rm"
				return e
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(secretSetCommand(env), secretListCommand(env), secretRemoveCommand(env))
	return cmd
}

// secretFlags are the flags of secret set.
type secretFlags struct {
	host, header             string
	paths, methods           []string
	sandboxes                []string
	fromEnv, fromFile, fromC string
	sessionOnly, asJSON      bool
}

func secretSetCommand(env *Env) *cobra.Command {
	var given secretFlags
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "add or replace a secret, and apply it to your sandboxes",
		Long: "Add or replace a secret. Without --from-env, --from-file and --from-cmd, its\n" +
			"value is read from standard input, or asked for on a terminal. NAME anthropic,\n" +
			"claude, openai, google or github without --host is a preset of host and header:\n" +
			"claude is for the token of a Claude subscription, from claude setup-token.\n\n" +
			"Requests outside --path and --method get the status 403, and are reported as\n" +
			"denied. Host and port 443 are allowed in the network of the sandbox. Sandboxes\n" +
			"need network filtered or allowlist.\n\n" +
			"--from-env and --from-file are read once, on your machine. --from-cmd is a\n" +
			"program with arguments, without a shell. The daemon runs it on its machine when\n" +
			"it needs the value, and again when the server answers 401. It prints the value,\n" +
			"or {\"value\":\"…\",\"expires\":\"2030-01-31T12:00:00Z\"}. Only the admin may use it.",
		Example: "  sandboxd secret set anthropic --from-env ANTHROPIC_API_KEY\n" +
			"  sandboxd secret set github --path /owner/repo --from-cmd 'gh auth token'\n" +
			"  sandboxd secret set crm --host api.example.com --path /v1/contacts --method GET \\\n" +
			"    --header 'Authorization: Bearer {}' --for demo <key.txt",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := given.secret(args[0])
			if err != nil {
				return err
			}
			v, err := secretValue(env.Stdin, s.Source.Kind)
			if err != nil {
				return err
			}
			change, err := env.Hub.Secrets.Set(cmd.Context(), env.Principal, s, v)
			if err != nil {
				return err
			}
			if given.asJSON {
				return env.printJSON(change)
			}
			reportSecret(env.Stdout, env.Stderr, change)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&given.host, "host", "", "host that the credential is for, without wildcards")
	f.StringArrayVar(&given.paths, "path", nil,
		"allow this path and those below, or METHOD,… PATH; repeatable (default: all paths)")
	f.StringSliceVar(&given.methods, "method", nil,
		"allow this method on paths without their own; repeatable (default: all methods)")
	f.StringVar(&given.header, "header", "",
		"header with the credential: NAME: TEXT, {} is the value, {basic:USER} is for HTTP Basic")
	f.StringVar(&given.fromEnv, "from-env", "", "environment variable with the value")
	f.StringVar(&given.fromFile, "from-file", "", "file with the value")
	f.StringVar(&given.fromC, "from-cmd", "",
		"command that prints the value, on the daemon's machine")
	f.StringArrayVar(&given.sandboxes, "for", nil,
		"sandbox that uses the secret, existing or not; repeatable (default: all of yours)")
	f.BoolVar(&given.sessionOnly, "session-only", false,
		"keep the secret in memory, until the daemon ends")
	f.BoolVar(&given.asJSON, "json", false, "print one object, without the value")
	return cmd
}

// secret returns what the flags describe, without its value.
func (f secretFlags) secret(name string) (secret.Secret, error) {
	s := secret.Secret{Name: name, Sandboxes: f.sandboxes, SessionOnly: f.sessionOnly,
		Source: secret.Source{Kind: secret.KindValue}}
	sources := 0
	for _, source := range []secret.Source{{Kind: secret.KindEnv, From: f.fromEnv},
		{Kind: secret.KindFile, From: f.fromFile}, {Kind: secret.KindCmd, From: f.fromC}} {
		if source.From != "" {
			s.Source = source
			sources++
		}
	}
	if sources > 1 {
		return s, usage("secret set: --from-env, --from-file and --from-cmd are mutually exclusive")
	}
	var rules []secret.Rule
	for _, path := range f.paths {
		r, err := secret.ParseRule(path)
		if err != nil {
			return s, err
		}
		rules = append(rules, r)
	}
	if f.host != "" {
		s.Bindings = []secret.Binding{{Host: f.host, Header: f.header,
			Rules: secret.WithMethods(rules, f.methods)}}
		return s, nil
	}
	bindings, ok := secret.Preset(name, rules, f.methods)
	switch {
	case !ok:
		e := usage("secret set %s: missing --host", text.Line(name, 64))
		e.Hint = "name it: --host api.example.com; presets without it: " +
			strings.Join(secret.Presets, ", ")
		return s, e
	case f.header != "":
		return s, usage("secret set %s: --header needs --host: the preset has its own", name)
	}
	s.Bindings = bindings
	return s, nil
}

// secretValue reads the value from standard input. The command line tool sends there what
// --from-env and --from-file name on its machine.
func secretValue(stdin io.Reader, kind secret.Kind) (secret.Value, error) {
	if kind == secret.KindCmd {
		return secret.Value{}, nil
	}
	b, err := io.ReadAll(io.LimitReader(stdin, secret.MaxValue+2))
	if err != nil {
		return secret.Value{}, fmt.Errorf("secret: read the value: %w", err)
	}
	if len(b) == 0 {
		e := usage("secret set: no value on standard input")
		e.Hint = "write <FILE, or --from-env or --from-file with sandboxd on your machine"
		return secret.Value{}, e
	}
	return secret.ParseValue(b)
}

// reportSecret prints what a new secret is for.
func reportSecret(stdout, stderr io.Writer, c lifecycle.SecretChange) {
	fmt.Fprintf(stdout, "secret %s: %s\n", c.Name, strings.Join(c.Hosts(), ", "))
	switch {
	case len(c.AppliesTo) > 0:
		fmt.Fprintf(stdout, "  used by %s\n", strings.Join(c.AppliesTo, ", "))
	case len(c.Sandboxes) == 0:
		fmt.Fprintln(stdout, "  used by all new sandboxes with network filtered or allowlist")
	}
	for _, note := range c.Notes {
		fmt.Fprintf(stderr, "note: %s\n", text.Line(note, 400))
	}
	if len(c.AppliesTo) > 0 {
		fmt.Fprintln(stderr, "note: programs that run already read the daemon's certificate "+
			"when they are restarted")
	}
}

func secretListCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list your secrets, without their values",
		Long: "List your secrets: their hosts, the requests that they allow, the sandboxes that\n" +
			"use them, and when a request last used one since the daemon began. Values are\n" +
			"never shown.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := env.Hub.Secrets.List(env.Principal)
			if asJSON {
				for _, s := range all {
					if err := env.printJSON(s); err != nil {
						return err
					}
				}
				return nil
			}
			return table(env.Stdout, func(w io.Writer) {
				fmt.Fprintln(w, "NAME\tHOST\tALLOWED\tSANDBOXES\tSOURCE\tLAST USED")
				for _, s := range all {
					sandboxes, used := strings.Join(s.Sandboxes, ","), "never"
					if sandboxes == "" {
						sandboxes = "all"
					}
					if s.LastUsed != nil {
						used = s.LastUsed.Local().Format(time.DateTime)
					}
					source := strings.TrimSpace(string(s.Source.Kind) + " " + s.Source.From)
					for _, b := range s.Bindings {
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, b.Host,
							allowedText(b.Rules), sandboxes, text.Line(source, 60), used)
					}
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per secret")
	return cmd
}

// allowedText returns rules in a cell of a table.
func allowedText(rules []secret.Rule) string {
	if len(rules) == 0 {
		return "all"
	}
	texts := make([]string, len(rules))
	for i, r := range rules {
		texts[i] = r.String()
	}
	return text.Line(strings.Join(texts, "; "), 120)
}

func secretRemoveCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME…",
		Short: "remove secrets, also from running sandboxes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if _, err := env.Hub.Secrets.Remove(cmd.Context(), env.Principal,
					name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
