package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// drawsBars reports whether progress of a forwarded command is drawn as a bar: on a terminal, for
// people. Elsewhere it is plain lines. Other commands print what programs say on standard error.
func drawsBars(cmd *cobra.Command) bool {
	return slices.Contains([]string{"fork", "new", "run"}, commandName(cmd)) &&
		isTerminal(os.Stderr) && os.Getenv("TERM") != "dumb" &&
		!flagSet(cmd, "json") && !flagSet(cmd, "quiet")
}

// What a daemon prints about progress: the percentage of a pull, what the engine says about its
// layers, and the number of a step of a build.
var (
	pulledLine = regexp.MustCompile(`^pulled (\d+)%, `)
	layerLine  = regexp.MustCompile(
		`^(\S+: (Pull|Already |Waiting|Downl|Verif|Extr|Retrying)|Digest: |Status: )`)
	stepOfLine = regexp.MustCompile(`^\[(\d+)/(\d+)\] `)
)

// maxTitle bounds what is written before a bar, in columns.
const maxTitle = 40

// bars is a terminal on which a daemon's progress is drawn as a bar below the other lines. Write
// takes the daemon's standard error; lines that are not progress end the bar. Its methods are safe
// for concurrent use.
type bars struct {
	out *os.File

	mu      sync.Mutex
	rest    []byte        // guarded by mu; an incomplete line
	all     *mpb.Progress // guarded by mu; nil without a bar
	bar     *mpb.Bar      // guarded by mu; nil without a bar
	title   string        // guarded by mu
	pulling bool          // guarded by mu; the bar shows a pull
}

func newBars(out *os.File) *bars { return &bars{out: out} }

func (b *bars) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest = append(b.rest, p...)
	for {
		line, rest, ended := bytes.Cut(b.rest, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		err := b.lineLocked(string(line))
		b.rest = rest
		if err != nil {
			return len(p), err
		}
	}
}

// lineLocked draws what a line says about progress, and prints others.
func (b *bars) lineLocked(line string) error {
	pulled, step := pulledLine.FindStringSubmatch(line), stepOfLine.FindStringSubmatch(line)
	switch {
	case strings.HasPrefix(line, "pulling "):
		b.beginLocked(line, 100)
		b.pulling = true
		return nil
	case strings.HasPrefix(line, "building "), strings.HasPrefix(line, "setup: "):
		b.beginLocked(line, 0)
		return b.printLocked(line)
	case b.bar != nil && b.pulling && pulled != nil:
		percent, _ := strconv.ParseInt(pulled[1], 10, 8) // too large is 127
		b.bar.SetCurrent(min(percent, 99))               // at 100 the bar would be over
		return nil
	case b.bar != nil && b.pulling && layerLine.MatchString(line):
		return nil
	case b.bar != nil && step != nil:
		at, _ := strconv.ParseInt(step[1], 10, 32)
		of, _ := strconv.ParseInt(step[2], 10, 32)
		if at == 1 {
			b.beginLocked(b.title, max(of, 1))
		}
		b.bar.SetCurrent(max(at-1, 0))
		return b.printLocked(line)
	case b.bar != nil && strings.HasPrefix(line, "  "): // of a step
		return b.printLocked(line)
	}
	b.endLocked()
	return b.printLocked(line)
}

// printLocked prints a line above the bar, if there is one.
func (b *bars) printLocked(line string) error {
	to := io.Writer(b.out)
	if b.all != nil {
		to = b.all
	}
	_, err := io.WriteString(to, text.Lines(line)+"\n")
	return err
}

// beginLocked draws a bar of total parts instead of the one before; 0 is an unknown number.
func (b *bars) beginLocked(title string, total int64) {
	b.endLocked()
	b.title, b.pulling = title, false
	b.all = mpb.New(mpb.WithOutput(b.out), mpb.WithWidth(30))
	name := mpb.PrependDecorators(decor.Name(text.Line(title, maxTitle), decor.WCSyncSpaceR))
	if total == 0 {
		b.bar = b.all.AddSpinner(1, name, mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_MMSS)))
		return
	}
	b.bar = b.all.AddBar(total, name, mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}),
		decor.Elapsed(decor.ET_STYLE_MMSS, decor.WC{W: 6})))
}

// endLocked removes the bar. Lines above it stay.
func (b *bars) endLocked() {
	if b.bar == nil {
		return
	}
	b.bar.Abort(true)
	b.all.Wait()
	b.bar, b.all = nil, nil
}

// before returns a writer to w before which the bar ends.
func (b *bars) before(w io.WriteCloser) io.WriteCloser { return barless{w, b} }

type barless struct {
	io.WriteCloser
	bars *bars
}

func (w barless) Write(p []byte) (int, error) {
	w.bars.mu.Lock()
	w.bars.endLocked()
	w.bars.mu.Unlock()
	return w.WriteCloser.Write(p)
}

// Close ends the bar and prints a line that has not ended.
func (b *bars) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endLocked()
	if len(b.rest) == 0 {
		return nil
	}
	_, err := io.WriteString(b.out, text.Lines(string(b.rest)))
	b.rest = nil
	return err
}
