// Package syntax tells whether a command is whole, before a shell that would wait for the rest of
// it gets to see it. It is asked outside the sandbox: the guest, which every sandbox carries, does
// without a parser.
package syntax

import (
	"errors"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Check returns an error with code syntax for a command that the shell would wait for the rest of:
// an open quote, an open here-document, a loop without its end. shell is a program's name, such as
// bash or dash; of a shell that is not known here nothing is said. Other errors are the shell's own
// to report.
func Check(shell, command string) error {
	lang := syntax.LangBash
	switch shell {
	case "bash":
	case "sh", "dash", "ash", "busybox":
		lang = syntax.LangPOSIX
	default:
		return nil
	}
	// The shell reads a newline after it. Without one, the parser takes a here-document that has
	// not begun for whole.
	_, err := syntax.NewParser(syntax.Variant(lang)).Parse(strings.NewReader(command+"\n"), "")
	if err == nil || !syntax.IsIncomplete(err) {
		return nil
	}
	where, what := "", err.Error()
	var parse syntax.ParseError
	if errors.As(err, &parse) {
		where, what = fmt.Sprintf("line %d: ", parse.Pos.Line()), parse.Text
	}
	return &wire.Error{Code: wire.CodeSyntax, Message: "the command is not complete: " + where +
		what, Hint: "close what it opens"}
}
