package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/view/picture"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Limits for the files that one call writes: the program that shows images may be malicious.
const (
	maxSavedImages = 1000
	maxSavedBytes  = 1 << 30
)

// imagesAuto is the value of --images and python.images that detects what the terminal can draw.
const imagesAuto = "auto"

func isDrawing(s string) error {
	if s != imagesAuto && !slices.Contains(picture.Protocols, picture.Protocol(s)) {
		return errors.New("must be auto, kitty, iterm2, sixel or none")
	}
	return nil
}

// pictures draws and saves the images of one call of python. The daemon has neither the terminal
// nor the files of its client.
type pictures struct {
	asJSON   bool
	terminal picture.Terminal
	protocol func() picture.Protocol // detected once, which may query the terminal
	typed    []byte                  // what the user typed during that query
	person   bool                    // a user at the terminal can answer questions

	dir   string            // directory for saved images; empty saves none
	last  int               // last number tried for a file name
	files map[string]string // paths of saved images, by their number in the call
	saved int64             // size of the saved images in bytes
	err   error             // first error of saving an image
}

// pictures returns how to handle the images of a call. It returns nil if the daemon's description
// is enough and no user can answer questions.
func (c *cli) pictures(cmd *cobra.Command) (*pictures, error) {
	images, save := cmd.Flags().Lookup("images"), cmd.Flags().Lookup("save-images")
	how := c.config.Python.Images
	if images.Changed {
		how = images.Value.String()
		if err := isDrawing(how); err != nil {
			return nil, usage(fmt.Sprintf("python: --images %q: %v", how, err),
				"auto detects what the terminal can draw")
		}
	}
	asked, asJSON := images.Changed || save.Changed, flagSet(cmd, "json")
	switch {
	case !asked && (flagSet(cmd, "json-lines") || flagSet(cmd, "packages")):
		return nil, nil
	case flagSet(cmd, "json-lines"), flagSet(cmd, "packages"):
		return nil, usage("python: --json-lines and --packages cannot draw or save images",
			"omit --images and --save-images")
	case asJSON && images.Changed:
		return nil, usage("python: --json includes the images and draws none", "omit --images")
	case save.Changed && save.Value.String() == "":
		return nil, usage("python: --save-images: missing directory", "write --save-images DIR")
	}
	here := isTerminal(os.Stdout)
	if asJSON || !here && !images.Changed || how == imagesAuto && !(here && isTerminal(os.Stdin)) {
		how = string(picture.None)
	}
	p := &pictures{asJSON: asJSON, dir: save.Value.String(), files: map[string]string{},
		terminal: picture.Terminal{In: os.Stdin, Out: os.Stdout, Env: os.Getenv}}
	// a prompt there must be visible
	p.person = !asJSON && here && isTerminal(os.Stdin) && isTerminal(os.Stderr)
	if p.dir == "" && how == string(picture.None) && !p.person {
		return nil, nil
	}
	p.protocol = func() picture.Protocol { return picture.Protocol(how) }
	if how == imagesAuto {
		keep := flagSet(cmd, "interactive")
		p.protocol = sync.OnceValue(func() (can picture.Protocol) {
			can, p.typed = p.terminal.Ask(keep)
			return can
		})
		if keep { // later input of the terminal is for the code
			p.protocol()
		}
	}
	if p.dir != "" {
		if err := os.MkdirAll(p.dir, 0o777); err != nil {
			return nil, usage("python: --save-images: "+err.Error(), "name a writable directory")
		}
	}
	return p, nil
}

// run runs a python command and handles its images. It builds the remote command line.
func (p *pictures) run(ctx context.Context, control *agent.Client, cmd *cobra.Command,
	args []string, remote agent.Cmd) error {
	if p.asJSON {
		return p.runJSON(ctx, control, remote)
	}
	printer := command.NewPythonPrinter(os.Stdout, os.Stderr)
	printer.Picture = p.show
	ask := func(q command.PythonPrompt) { printer.Prompt(q.Text) } // standard input answers it
	asked := func() {}                                             // ends a pending question
	if p.person && cmd.Flags().Changed("code") && len(args) == 0 {
		if err := cmd.Flags().Set("interactive", "true"); err != nil {
			return err
		}
		q := newQuestions(p.typed, printer)
		defer q.close()
		ask, asked, remote.Stdin = func(prompt command.PythonPrompt) {
			q.ask(ctx, prompt)
		}, q.end, q.answers
	}
	if err := cmd.Flags().Set("json-lines", "true"); err != nil {
		return err
	}
	remote.Command = remoteLine(cmd, args)
	var result python.Result // zero if the call is lost
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	remote.Stdout = &lines{most: maxLine, stop: cancel, each: func(line []byte) error {
		asked()
		var l command.PythonLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("python: answer of the daemon: %w", err)
		}
		switch {
		case l.Output != nil:
			printer.Output(*l.Output)
		case l.Prompt != nil:
			ask(*l.Prompt)
		case l.Result != nil:
			result = *l.Result
		}
		return nil
	}}
	err := forward(ctx, control, remote)
	asked()
	return p.end(err, printer.Close(result))
}

// runJSON saves the images of the JSON object, and adds their paths to it.
func (p *pictures) runJSON(ctx context.Context, control *agent.Client, remote agent.Cmd) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &held{most: maxLine, stop: cancel}
	remote.Stdout = out
	err := forward(ctx, control, remote)
	var result struct {
		python.Result
		Files map[string]string `json:"files"`
	}
	if json.Unmarshal(out.Bytes(), &result) != nil || result.Ended == "" { // an error
		shown := shownOn(os.Stdout)
		_, printed := shown.Write(out.Bytes())
		return p.end(err, errors.Join(printed, shown.Close()))
	}
	for _, o := range result.Outputs {
		p.save(o)
	}
	result.Files = p.files
	return p.end(err, text.WriteJSON(os.Stdout, result))
}

// end returns the error of the command, or that an image was not saved.
func (p *pictures) end(ran, printed error) error {
	for _, err := range []error{ran, p.err, printed} {
		if err != nil {
			return err
		}
	}
	return nil
}

// show is the Picture function of a command.PythonPrinter.
func (p *pictures) show(o python.Output) (drawn []byte, said string) {
	said = o.String()
	path := p.save(o)
	if path != "" {
		said = strings.TrimSuffix(said, "]\n") + ", " + path + "]\n"
	}
	mime, data := o.Picture()
	if mime == "image/svg+xml" {
		return nil, said
	}
	drawn, err := picture.Draw(p.protocol(), data, p.terminal.Width())
	if err != nil || len(drawn) == 0 {
		return nil, said
	}
	if path == "" {
		said = ""
	}
	return drawn, said
}

// endings are the file name extensions by the detected type of the image.
var endings = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif",
	"image/webp": ".webp", "image/svg+xml": ".svg"}

// save writes an image to a new file and returns its path, or "" if it does not save it. The
// sandbox has no influence on the name.
func (p *pictures) save(o python.Output) string {
	mime, data := o.Picture()
	if p.dir == "" || p.err != nil || o.Image == "" || endings[mime] == "" {
		return ""
	}
	if p.saved += int64(len(data)); len(p.files) == maxSavedImages || p.saved > maxSavedBytes {
		p.err = &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf(
				"python: image %s not saved: a call saves at most %d images and 1 GiB", o.Image,
				maxSavedImages),
			Hint: "show the rest in another call, or copy files with sandboxd cp"}
		return ""
	}
	for {
		p.last++
		path := filepath.Join(p.dir, strconv.Itoa(p.last)+endings[mime])
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			_, err = file.Write(data)
			if err = errors.Join(err, file.Close()); err != nil {
				_ = os.Remove(path) // incomplete
			}
		}
		if err != nil {
			p.err = &wire.Error{Code: wire.CodeUnavailable,
				Message: fmt.Sprintf("python: image %s not saved: %v", o.Image, err),
				Hint:    "use another directory for --save-images"}
			return ""
		}
		p.files[o.Image] = path
		return path
	}
}

// lines calls each with every line, without its end. An error of each, or a line that is too long,
// ends the call.
type lines struct {
	each func([]byte) error
	most int         // longest line, in bytes
	stop func(error) // ends the call
	part []byte      // beginning of an incomplete line
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		if len(line) > l.most-len(l.part) {
			err := fmt.Errorf("python: answer of the daemon: a line is longer than %d MiB",
				l.most>>20)
			l.stop(err)
			return 0, err
		}
		l.part = append(l.part, line...)
		if !ended {
			return n, nil
		}
		if err := l.each(l.part); err != nil {
			l.stop(err)
			return n - len(rest), err
		}
		l.part, p = l.part[:0], rest
	}
}
