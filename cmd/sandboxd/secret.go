package main

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// secretSet is the command that reads the value of a secret on this machine.
const secretSet = "secret set"

// secretInput returns the value for secret set: from the variable or the file that its flags name
// on this machine, asked for on a terminal, or standard input.
func secretInput(cmd *cobra.Command, args []string) (io.Reader, error) {
	variable, file := cmd.Flags().Lookup("from-env"), cmd.Flags().Lookup("from-file")
	switch {
	case variable.Changed && file.Changed || cmd.Flags().Changed("from-cmd"):
		return bytes.NewReader(nil), nil // the daemon reports the mistake, or runs the command
	case variable.Changed:
		value := os.Getenv(variable.Value.String())
		if value == "" {
			return nil, usage(fmt.Sprintf("%s: variable %s is not set", secretSet,
				variable.Value.String()), "export it, or use --from-file")
		}
		return bytes.NewReader([]byte(value)), nil
	case file.Changed:
		f, err := os.Open(file.Value.String())
		if err != nil {
			return nil, usage(fmt.Sprintf("%s: %v", secretSet, err), "name a file with the value")
		}
		defer f.Close()
		value, err := io.ReadAll(io.LimitReader(f, secret.MaxValue+2))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", secretSet, err)
		}
		return bytes.NewReader(value), nil
	case isTerminal(os.Stdin):
		fmt.Fprintf(os.Stderr, "Value of secret %s (not shown): ", args[0])
		value, err := term.ReadPassword(int(os.Stdin.Fd()))
		fmt.Fprintln(os.Stderr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", secretSet, err)
		}
		return bytes.NewReader(value), nil
	}
	return os.Stdin, nil
}

// serverRoots returns the authorities that verify the servers of secrets: those of the bundle, or
// nil for this machine's.
func serverRoots(bundle string) (*x509.CertPool, error) {
	if bundle == "" {
		return nil, nil //nolint:nilnil // crypto/tls uses the machine's
	}
	text, err := os.ReadFile(bundle)
	if err != nil {
		return nil, fmt.Errorf("ca_bundle: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, &wire.Error{Code: wire.CodeUsage,
			Message: "ca_bundle: " + bundle + " has no certificates",
			Hint:    "name a PEM file, or leave ca_bundle out for this machine's"}
	}
	return roots, nil
}
