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

// What one call may write to files of this machine: what shows images may be somebody else's program by now.
const (
	maxSavedImages = 1000
	maxSavedBytes  = 1 << 30
)

// imagesAuto is the value of --images and python.images that asks the terminal.
const imagesAuto = "auto"

func isDrawing(s string) error {
	if s != imagesAuto && !slices.Contains(picture.Protocols, picture.Protocol(s)) {
		return errors.New("is none of auto, kitty, iterm2, sixel, none")
	}
	return nil
}

// pictures are the images of one call of python, which this program draws and saves: the daemon has neither the terminal nor the files of
// its client.
type pictures struct {
	asJSON   bool
	terminal picture.Terminal
	protocol func() picture.Protocol // found out once, which may take the terminal's answer
	typed    []byte                  // while the terminal was asked
	person   bool                    // is at the terminal, and can be asked

	dir   string            // where they are saved; empty is nowhere
	last  int               // number that was tried last
	files map[string]string // that were written, by the image's number in the call
	saved int64             // bytes of them
	err   error             // the first that was not saved, or not printed
}

// pictures says what is to be done with the images of a call; nil is nothing but to name them, for nobody who can be asked: the daemon does that.
func (c *cli) pictures(cmd *cobra.Command) (*pictures, error) {
	images, save := cmd.Flags().Lookup("images"), cmd.Flags().Lookup("save-images")
	how := c.config.Python.Images
	if images.Changed {
		how = images.Value.String()
		if err := isDrawing(how); err != nil {
			return nil, usage(fmt.Sprintf("python: --images %q %v", how, err), "auto asks the terminal")
		}
	}
	asked, asJSON := images.Changed || save.Changed, flagSet(cmd, "json")
	switch {
	case !asked && (flagSet(cmd, "json-lines") || flagSet(cmd, "packages")):
		return nil, nil
	case flagSet(cmd, "json-lines"), flagSet(cmd, "packages"):
		return nil, usage("python: --json-lines and --packages neither draw nor save images", "leave out --images and --save-images")
	case asJSON && images.Changed:
		return nil, usage("python: --json has the images in it, and draws none", "leave out --images")
	case save.Changed && save.Value.String() == "":
		return nil, usage("python: --save-images names no directory", "write --save-images DIR")
	}
	here := isTerminal(os.Stdout)
	if asJSON || !here && !images.Changed || how == imagesAuto && !(here && isTerminal(os.Stdin)) {
		how = string(picture.None)
	}
	p := &pictures{asJSON: asJSON, dir: save.Value.String(), files: map[string]string{}, terminal: picture.Terminal{In: os.Stdin, Out: os.Stdout, Env: os.Getenv}}
	p.person = !asJSON && here && isTerminal(os.Stdin) && isTerminal(os.Stderr) // else what the code says there would go elsewhere
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
		if keep { // later, what comes from the terminal is the code's
			p.protocol()
		}
	}
	if p.dir != "" {
		if err := os.MkdirAll(p.dir, 0o777); err != nil {
			return nil, usage("python: --save-images: "+err.Error(), "name a directory that can be written")
		}
	}
	return p, nil
}

// run runs a command of python, whose line it makes, and does with its images what is to be done.
func (p *pictures) run(ctx context.Context, lobby *agent.Client, cmd *cobra.Command, args []string, remote agent.Cmd) error {
	if p.asJSON {
		return p.runJSON(ctx, lobby, remote)
	}
	printer := command.NewPythonPrinter(os.Stdout, os.Stderr)
	printer.Picture = p.show
	ask := func(q command.PythonPrompt) { printer.Prompt(q.Text) } // what answers it is standard input's
	asked := func() {}                                             // returns when nobody is asked any more
	if p.person && cmd.Flags().Changed("code") && len(args) == 0 {
		if err := cmd.Flags().Set("interactive", "true"); err != nil {
			return err
		}
		q := newQuestions(p.typed, printer)
		defer q.close()
		ask, asked, remote.Stdin = func(prompt command.PythonPrompt) { q.ask(ctx, prompt) }, q.end, q.answers
	}
	if err := cmd.Flags().Set("json-lines", "true"); err != nil {
		return err
	}
	remote.Command = remoteLine(cmd, args)
	var result python.Result // of a call that is lost there is none
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	remote.Stdout = &lines{most: maxLine, stop: cancel, each: func(line []byte) error {
		asked()
		var l command.PythonLine
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("python: the daemon's line: %w", err)
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
	err := forward(ctx, lobby, remote)
	asked()
	return p.end(err, printer.Close(result))
}

// runJSON saves what the one object has, and adds to it where.
func (p *pictures) runJSON(ctx context.Context, lobby *agent.Client, remote agent.Cmd) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &held{most: maxLine, stop: cancel}
	remote.Stdout = out
	err := forward(ctx, lobby, remote)
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

// end is how the command ended: an image that was not saved is an error where nothing else is.
func (p *pictures) end(ran, printed error) error {
	for _, err := range []error{ran, p.err, printed} {
		if err != nil {
			return err
		}
	}
	return nil
}

// show is the Picture of a command.PythonPrinter.
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

// endings are those of files, by the type that the bytes are known to have.
var endings = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/svg+xml": ".svg"}

// save writes an image to a file that was not there, and returns its path; empty where it is not to be saved, or was not. The file's name has
// nothing of the sandbox.
func (p *pictures) save(o python.Output) string {
	mime, data := o.Picture()
	if p.dir == "" || p.err != nil || o.Image == "" || endings[mime] == "" {
		return ""
	}
	if p.saved += int64(len(data)); len(p.files) == maxSavedImages || p.saved > maxSavedBytes {
		p.err = &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("python: image %s is not saved: a call saves %d, of 1 GiB together", o.Image, maxSavedImages), Hint: "show the rest in another call, or copy files with sandboxd cp"}
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
				_ = os.Remove(path) // a part of an image
			}
		}
		if err != nil {
			p.err = &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("python: image %s is not saved: %v", o.Image, err), Hint: "--save-images takes another directory"}
			return ""
		}
		p.files[o.Image] = path
		return path
	}
}

// lines is a writer that calls each with every line, without its end. The error of each is the
// writer's, as is that a line is too long, and ends the call.
type lines struct {
	each func([]byte) error
	most int         // bytes of a line
	stop func(error) // ends the call
	part []byte      // of a line that has not ended
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		if len(line) > l.most-len(l.part) {
			err := fmt.Errorf("python: a line of the daemon is longer than %d MiB", l.most>>20)
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
