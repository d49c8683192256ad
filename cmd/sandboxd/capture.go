package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/session/track/corpus"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// capture is one invocation of conformance capture.
type capture struct {
	*cli
	target wire.Target
	is     string
	out    string
	stop   func() // lets ^C end this program
}

func captureCommand(c *cli) *cobra.Command {
	k := capture{cli: c}
	session := ""
	cmd := &cobra.Command{
		Use:   "capture NAME[~SESSION]",
		Short: "save why a session counts as working or as waiting for a person",
		Long: "Save what the state of a session was judged by, as a case for conformance\n" +
			"replay. Use it when sandboxd is wrong: --is says what is right. Without --is, the\n" +
			"command asks on a terminal.\n\n" +
			"The case has the last observations of the session: some seconds of a program that\n" +
			"animates its screen, hours of a quiet one. Of text it has what was before the\n" +
			"cursor, also what you typed there, and arguments of programs. It has nothing of\n" +
			"private mode. Read it before you share it.",
		Example: "  sandboxd conformance capture web --is working\n" +
			"  sandboxd conformance replay web~main.jsonl",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("conformance capture: name one sandbox", "usage: "+cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if k.target, err = wire.ParseTarget(args[0]); err != nil {
				return err
			}
			if session != "" {
				if strings.Contains(args[0], "~") && k.target.Session != session {
					return usage("conformance capture: NAME~SESSION and --session differ",
						"omit one of them")
				}
				if _, err := wire.ParseLabel("session name", session); err != nil {
					return err
				}
				k.target.Session = session
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			k.stop = stop
			return k.run(ctx)
		},
	}
	f := cmd.Flags()
	f.StringVar(&session, "session", "", "name of the session (default main)")
	f.StringVar(&k.is, "is", "", "what is right: working or needs-person")
	f.StringVarP(&k.out, "out", "o", "", "file, or - for standard output (default "+
		"NAME~SESSION.jsonl)")
	command.ByName(cmd)
	return cmd
}

// run saves the case.
func (k *capture) run(ctx context.Context) error {
	var is corpus.Verdict
	var err error
	if k.is != "" {
		if is, err = corpus.ParseVerdict(k.is); err != nil {
			return prefixed("conformance capture: --is: ", err)
		}
	} else if !isTerminal(os.Stdin) || !isTerminal(os.Stderr) {
		return usage("conformance capture: the right verdict is not known",
			"add --is working or --is needs-person")
	}
	client, err := k.dial(ctx, k.target.Sandbox, false)
	if err != nil {
		return err
	}
	defer client.Close()
	sh, err := client.Attach(ctx, agent.ShellOptions{Session: k.target.Session, NoNew: true})
	if err != nil {
		return err
	}
	defer sh.Close()
	trace, err := sh.Trace(ctx)
	if err != nil {
		return prefixed("conformance capture: ", err)
	}
	found, err := corpus.New(trace)
	if err != nil {
		return fmt.Errorf("conformance capture: %w", err)
	}
	if is == "" {
		k.stop()
		if is, err = askVerdict(os.Stdin, os.Stderr, k.target, found); err != nil {
			return err
		}
	}
	found.Is, found.Software = is, build.Version
	found.Captured = time.Now().UTC().Format(time.RFC3339)
	return k.save(found)
}

// askVerdict asks what is right.
func askVerdict(in io.Reader, out io.Writer, t wire.Target, c *corpus.Case) (corpus.Verdict,
	error) {
	fmt.Fprintf(out, "%s: %s, sandboxd says %s. Does it need a person? [y/n] ", t,
		text.Line(c.Program, 80), c.Said)
	line, err := bufio.NewReader(in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return corpus.NeedsPerson, nil
	case "n", "no":
		return corpus.Working, nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return "", usage("conformance capture: answer y or n", "or add --is working, --is needs-person")
}

// save writes the case to a new file.
func (k *capture) save(c *corpus.Case) error {
	if k.out == "-" {
		return c.Write(os.Stdout)
	}
	name := cmp.Or(k.out, k.target.Sandbox+"~"+k.target.Session+".jsonl")
	// Only for the user: it has text of the terminal.
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return &wire.Error{Code: wire.CodeExists, Message: "conformance capture: " + name +
			" exists already", Hint: "use another file: -o FILE"}
	}
	if err != nil {
		return err
	}
	if err := errors.Join(c.Write(f), f.Close()); err != nil {
		return err
	}
	fmt.Printf("%s: %d observations of %s, sandboxd says %s, right is %s\n"+
		"  to replay it: sandboxd conformance replay %[1]s\n", text.Line(name, 200),
		len(c.Trace.Observations), text.Line(cmp.Or(c.Program, "the shell"), 80), c.Said, c.Is)
	return nil
}

func replayCasesCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "replay FILE...",
		Short: "replay captured cases and compare the verdicts with what is right",
		Long: "Replay the cases of files that conformance capture wrote, also compressed with\n" +
			"gzip. The exit code is 1 if a verdict is wrong.",
		Example: "  sandboxd conformance replay web~main.jsonl",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("conformance replay: name a file", "usage: "+cmd.UseLine())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			wrong := false
			for _, name := range args {
				bad, err := replayFile(os.Stdout, name, asJSON)
				if err != nil {
					return fmt.Errorf("conformance replay: %s: %w", text.Line(name, 200), err)
				}
				wrong = wrong || bad
			}
			if wrong {
				return exitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per case")
	return cmd
}

// replayedCase is what conformance replay prints of a case with --json.
type replayedCase struct {
	File    string         `json:"file"`
	Case    int            `json:"case"` // number in the file, from 1
	Program string         `json:"program"`
	Says    corpus.Verdict `json:"says"` // now, at the end
	Is      corpus.Verdict `json:"is"`
	Wrong   int            `json:"wrong"` // wrong verdicts, also before the end
}

// replayFile replays the cases of a file, and reports whether a verdict is wrong.
func replayFile(w io.Writer, name string, asJSON bool) (wrong bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	r := replayedCase{File: filepath.Base(name)}
	err = corpus.Read(f, func(c *corpus.Case) error {
		r.Case++
		r.Program, r.Is, r.Wrong = c.Program, c.Is, 0
		if r.Says, err = c.Replay(); err != nil {
			return err
		}
		all, err := c.Judge()
		if err != nil {
			return err
		}
		for _, t := range all {
			if r.Wrong += t.Wrong; !t.Found {
				r.Wrong++
			}
		}
		if r.Says != r.Is {
			r.Wrong = max(r.Wrong, 1)
		}
		wrong = wrong || r.Wrong > 0
		if asJSON {
			return text.WriteJSON(w, r)
		}
		word := "ok"
		if r.Wrong > 0 {
			word = "WRONG"
		}
		_, err = fmt.Fprintf(w, "%-5s  %s case %d: %s: says %s, right is %s\n", word,
			text.Line(r.File, 200), r.Case, text.Line(cmp.Or(r.Program, "the shell"), 80), r.Says,
			r.Is)
		return err
	})
	return wrong, err
}
