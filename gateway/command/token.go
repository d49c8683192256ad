package command

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/token"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func tokenCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "create, list and revoke tokens for the HTTP API",
		Long: "Create, list and revoke tokens for the HTTP API. A token has your rights, or\n" +
			"read-only ones with --watch. Its connections end when it is revoked or\n" +
			"expires. It expires no later than the key or certificate that creates it. A\n" +
			"key with no-pty, command= or from= cannot create tokens.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				e := usage("token: unknown command %q", args[0])
				e.Hint = "use token new, token ls or token rm"
				return e
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(tokenNewCommand(env), tokenListCommand(env), tokenRemoveCommand(env))
	return cmd
}

// tokenJSON is a new token with its secret, which is printed only once.
type tokenJSON struct {
	token.Token
	Secret string `json:"token"`
}

func tokenNewCommand(env *Env) *cobra.Command {
	var asJSON, watch, person bool
	var label, expires string
	cmd := &cobra.Command{
		Use:   "new [LABEL]",
		Short: "create a token and print it; it cannot be shown again",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				label = args[0]
			}
			kind := wire.Agent
			if person {
				kind = wire.Person
			}
			age, err := ParseAge(expires)
			if err != nil {
				return usage("--expires %q: %v, or 0 for never", expires, err)
			}
			t, err := env.newToken(kind, watch, age)
			if err != nil {
				return err
			}
			t.Label = label
			secret, t, err := env.Tokens.Create(cmd.Context(), t)
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(tokenJSON{Token: t, Secret: secret})
			}
			fmt.Fprintln(env.Stdout, secret)
			return nil
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "make the token read-only")
	cmd.Flags().BoolVar(&person, "person", false,
		"create a token for a user, who can take the keyboard from agents")
	cmd.Flags().StringVar(&expires, "expires", "0",
		"lifetime of the token, such as 12h or 30d; 0 means until it is revoked")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// newToken returns a token with at most the rights of the caller's key, that expires no later than
// the key. It fails for a key with restrictions that a token cannot have. With age 0 the token is
// valid until it is revoked.
func (env *Env) newToken(kind wire.PartyKind, watch bool, age time.Duration) (token.Token, error) {
	p := env.Principal
	t := token.Token{Principal: p.Name, Kind: kind, Rights: wire.RightDrive, Line: p.Line}
	if names := p.Options.Unheld(); len(names) > 0 {
		return t, &wire.Error{
			Code: wire.CodeDenied,
			Message: "token: your key has restrictions that a token cannot have: " +
				strings.Join(names, ", "),
			Hint: "use a key without them in authorized_keys",
		}
	}
	if kind == wire.Person && p.Kind == wire.Agent {
		return t, &wire.Error{
			Code:    wire.CodeDenied,
			Message: "token: the key of an agent cannot create a token for a user",
			Hint:    "use a key without kind=\"agent\"",
		}
	}
	if watch || p.Rights == wire.RightWatch {
		t.Rights = wire.RightWatch
	}
	if age > 0 {
		at := time.Now().Add(age).Truncate(time.Millisecond)
		t.Expires = &at
	}
	if end := p.Options.Expires; !end.IsZero() && (t.Expires == nil || end.Before(*t.Expires)) {
		t.Expires = &end
	}
	return t, nil
}

func tokenListCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list your tokens",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := env.Tokens.List(env.Principal.Name)
			if asJSON {
				for _, t := range all {
					if err := env.printJSON(t); err != nil {
						return err
					}
				}
				return nil
			}
			return table(env.Stdout, func(w io.Writer) {
				fmt.Fprintln(w, "ID\tLABEL\tKIND\tRIGHTS\tCREATED\tEXPIRES")
				for _, t := range all {
					expires := "never"
					if t.Expires != nil {
						expires = t.Expires.Local().Format(time.DateTime)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, dash(text.Line(t.Label, 64)),
						t.Kind, t.Rights, t.Created.Local().Format(time.DateTime), expires)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per token")
	return cmd
}

func tokenRemoveCommand(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID…",
		Short: "revoke tokens, and end what they are used for",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if env.Principal.Rights == wire.RightWatch {
				return &wire.Error{
					Code:    wire.CodeDenied,
					Message: "token rm: your key is read-only",
					Hint:    "use a key that may drive",
				}
			}
			for _, id := range args {
				if err := env.Tokens.Revoke(cmd.Context(), env.Principal.Name, id); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
