package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Dockerfile features that the engine's classic builder lacks. Here-documents in RUN become a plain
// RUN; all others are rejected with an alternative. docs/concepts/decisions/0008-classic-builder.md
// says why BuildKit does not build.

// maxLine is the longest line of a Dockerfile that the classic builder reads.
const maxLine = 64<<10 - 1

// defaultShell runs RUN steps of images and stages that set no SHELL.
var defaultShell = []string{"/bin/sh", "-c"}

// runHeredocs converts a RUN with here-documents to a RUN without them. As with BuildKit, the shell
// of the stage gets the text. A single here-document is the script; the shell itself reads several.
func (d *dockerfile) runHeredocs(node *parser.Node) (string, error) {
	if node.Next == nil || node.Attributes["json"] {
		return "", errors.New("RUN: a here-document must follow a shell command")
	}
	script := node.Next.Value
	if alone, err := parser.ParseHeredoc(script); err == nil && alone != nil {
		script = node.Heredocs[0].Content
		if alone.Chomp {
			script = parser.ChompHeredocContent(script)
		}
		if strings.HasPrefix(script, "#!") {
			return "", sandbox.Hint(
				fmt.Errorf("RUN %s with #! is not supported", brief(node.Next.Value)),
				"name the program: RUN python3 <<EOF")
		}
	} else {
		for _, doc := range node.Heredocs {
			script += "\n" + doc.Content + doc.Name
		}
	}
	if !utf8.ValidString(script) || strings.ContainsRune(script, 0) {
		return "", errors.New("RUN: the here-document is not valid UTF-8")
	}
	words, err := json.Marshal(append(d.shell[:len(d.shell):len(d.shell)], script))
	if err != nil {
		return "", err
	}
	line := "RUN " + string(words)
	if len(line) > maxLine {
		return "", sandbox.Hint(
			fmt.Errorf("RUN: the here-document is longer than %d bytes", maxLine),
			"COPY the script, then RUN it")
	}
	return line, nil
}

// setShell reads a SHELL instruction. The builder rejects one that is not a list.
func (d *dockerfile) setShell(node *parser.Node) {
	if list := words(node.Next); node.Attributes["json"] && len(list) > 0 {
		d.shell = list
	}
}

// unsupported returns the error of a flag that only BuildKit knows.
func unsupported(instruction, flag string) error {
	name, value, _ := strings.Cut(flag, "=")
	hint := "remove it"
	switch instruction + " " + name {
	case "RUN --mount":
		hint = mountHint(value)
	case "RUN --network":
		hint = "steps use the network of the sandbox: --network"
	case "COPY --chmod", "ADD --chmod":
		hint = "add RUN chmod after it"
	case "COPY --parents", "COPY --exclude", "ADD --exclude":
		hint = "use several instructions, or list files to exclude in .dockerignore"
	case "ADD --checksum":
		hint = "add RUN sha256sum -c after it"
	}
	return sandbox.Hint(fmt.Errorf("%s %s is not supported: images are built without BuildKit",
		instruction, brief(flag)), hint)
}

// mountHint returns the alternative to a mount of a step.
func mountHint(value string) string {
	kind := "bind"
	for field := range strings.SplitSeq(value, ",") {
		if k, ok := strings.CutPrefix(field, "type="); ok {
			kind = k
		}
	}
	switch kind {
	case "bind":
		return "use COPY before the step"
	case "cache":
		return "remove it: the step then downloads on every run"
	case "tmpfs":
		return "remove it, and delete temporary files in the step"
	}
	return "remove it, and use the secret in setup: instead" // secret, ssh
}
