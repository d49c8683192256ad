package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-sixel"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway/view/picture"
	"github.com/sandboxd/sandboxd/sandbox/pty"
)

// answersOf are the answers of terminals to queries for the image protocols.
var answersOf = map[string]string{
	"kitty":  "\x1b_Gi=31;OK\x1b\\\x1bP>|kitty(0.39.1)\x1b\\\x1b[?62;c",
	"iterm2": "\x1bP>|iTerm2 3.5.10\x1b\\\x1b[?64;1;2;4;6;17;18;21;22c",
	"sixel":  "\x1bP>|foot(1.16.2)\x1b\\\x1b[?62;4;22c",
	"plain":  "\x1bP>|VTE(7600)\x1b\\\x1b[?65;1;9c",
}

// terminalCmd runs a command on a terminal of a kind of answersOf, and types TYPED at once. The
// story's stdout is the content of the terminal, with a line "picture N" for each picture, whose
// pixels are in drawn-N.png. If the terminal answers too late, on a busy machine, nothing is drawn,
// and the command runs again.
//
//	        terminal KIND TYPED COMMAND…
//		terminal KIND TYPED COMMAND…
func terminalCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || answersOf[args[0]] == "" {
		ts.Fatalf("usage: terminal KIND TYPED COMMAND…")
	}
	path, err := lookIn(ts.Getenv("PATH"), args[2])
	ts.Check(err)
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		cmd := exec.CommandContext(ctx, path, args[3:]...)
		cmd.Dir = ts.MkAbs(".")
		// whose answer takes longer
		cmd.Env = []string{"TERM=xterm-256color", "SSH_TTY=elsewhere"}
		for _, name := range []string{"PATH", "HOME", "XDG_CONFIG_HOME", "SANDBOXD_STATE",
			"SANDBOXD_GUEST_DIR", "SANDBOXD_TEST_GUESTS"} {
			cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
		}
		tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80, X: 800, Y: 480})
		ts.Check(err)
		_, err = tty.WriteString(strings.ReplaceAll(args[1], `\n`, "\n"))
		ts.Check(err)
		var all []byte
		for answered := false; err == nil; {
			buf := make([]byte, 64<<10)
			var n int
			n, err = tty.Read(buf) // the last error: the other end is closed
			all = append(all, buf[:n]...)
			if !answered && bytes.Contains(all, []byte("\x1b[c")) {
				answered = true
				_, err = tty.WriteString(answersOf[args[0]])
			}
		}
		ended := cmd.Wait()
		cancel()
		tty.Close()
		text, drawn, err := shownBy(all)
		ts.Check(err)
		if len(drawn) == 0 && args[0] != "plain" && strings.Contains(text, "[image ") {
			continue
		}
		for i, img := range drawn {
			file, err := os.Create(ts.MkAbs(fmt.Sprintf("drawn-%d.png", i+1)))
			ts.Check(err)
			ts.Check(png.Encode(file, img))
			ts.Check(file.Close())
		}
		fmt.Fprint(ts.Stdout(), text)
		ts.Check(ended)
		return
	}
	ts.Fatalf("the terminal draws nothing")
}

var (
	drawings = regexp.MustCompile(
		`(?s)(?:\x1b_Ga=T,[^;]*;[^\x1b]*\x1b\\)(?:\x1b_Gm=[^;]*;[^\x1b]*\x1b\\)*|\x1b\]1337;[^\x07]*\x07|\x1bP[0-9;]*q[^\x1b]*\x1b\\`)
	asking   = regexp.MustCompile(`\x1b_Gi=31[^\x1b]*\x1b\\|\x1b\[>q|\x1b\[c\r\x1b\[K`)
	payloads = regexp.MustCompile(`[;:]([A-Za-z0-9+/=]*)(?:\x1b\\|\x07)`)
)

// shownBy splits the output of a program into text, with a line for each picture, and the pictures.
func shownBy(all []byte) (text string, drawn []image.Image, err error) {
	all = drawings.ReplaceAllFunc(all, func(sequence []byte) []byte {
		var img image.Image
		if bytes.HasPrefix(sequence, []byte("\x1bP")) {
			err = sixel.NewDecoder(bytes.NewReader(sequence)).Decode(&img)
		} else {
			var data []byte
			for _, m := range payloads.FindAllSubmatch(sequence, -1) {
				data = append(data, m[1]...)
			}
			img, err = png.Decode(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(data)))
		}
		drawn = append(drawn, img)
		return fmt.Appendf(nil, "picture %d", len(drawn))
	})
	text = strings.ReplaceAll(string(asking.ReplaceAll(all, nil)), "\r\n", "\n")
	if err == nil && strings.ContainsRune(text, 0x1b) {
		err = fmt.Errorf("the terminal got what it was not to get: %q", text)
	}
	return text, drawn, err
}

// samePixelsCmd compares two pictures. Sixel has fewer colors, in steps of 1/100: its pixels may
// differ by OFF.
//
//	        samepixels FILE FILE [OFF]
//		samepixels FILE FILE [OFF]
func samePixelsCmd(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: samepixels FILE FILE [OFF]")
	}
	off := 0
	if len(args) == 3 {
		_, err := fmt.Sscan(args[2], &off)
		ts.Check(err)
	}
	var imgs [2]image.Image
	for i, name := range args[:2] {
		var err error
		imgs[i], err = png.Decode(strings.NewReader(ts.ReadFile(name)))
		ts.Check(err)
	}
	if imgs[0].Bounds() != imgs[1].Bounds() {
		ts.Fatalf("%v and %v", imgs[0].Bounds(), imgs[1].Bounds())
	}
	for y := range imgs[0].Bounds().Dy() {
		for x := range imgs[0].Bounds().Dx() {
			p, q := color.NRGBAModel.Convert(imgs[0].At(x, y)).(color.NRGBA),
				color.NRGBAModel.Convert(imgs[1].At(x, y)).(color.NRGBA)
			if max(p.R, q.R)-min(p.R, q.R) > uint8(off) ||
				max(p.G, q.G)-min(p.G, q.G) > uint8(off) ||
				max(p.B, q.B)-min(p.B, q.B) > uint8(off) {
				ts.Fatalf("pixel %d,%d: %v and %v", x, y, p, q)
			}
		}
	}
}

// A sandbox cannot fill this machine's disk.
func TestSavedImagesAreBounded(t *testing.T) {
	img := python.Output{Type: python.Display,
		Data: map[string]json.RawMessage{"image/png": json.RawMessage(`"iVBORw0KGgo="`)}}
	for name, p := range map[string]*pictures{
		"images": {dir: t.TempDir(), files: map[string]string{}, saved: 0},
		"bytes":  {dir: t.TempDir(), files: map[string]string{}, saved: maxSavedBytes - 80},
	} {
		n := 0
		for ; n <= maxSavedImages; n++ {
			if img.Image = strconv.Itoa(n + 1); p.save(img) == "" {
				break
			}
		}
		if want := map[string]int{"images": maxSavedImages, "bytes": 10}[name]; n != want ||
			p.err == nil {
			t.Errorf("%s: %d were saved, then %v; want %d", name, n, p.err, want)
		}
		if p.save(img) != "" {
			t.Errorf("%s: saved after an error", name)
		}
	}
}

// A picture in pieces of any size is one line.
func TestLines(t *testing.T) {
	var got []string
	var stopped error
	l := &lines{most: 10, stop: func(err error) {
		stopped = err
	}, each: func(p []byte) error { got = append(got, string(p)); return nil }}
	for _, piece := range []string{"one\ntw", "", "o", "\n\nthree", "\nfour"} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "one|two||three"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", got, want)
	}
	l.each = func([]byte) error { return os.ErrClosed }
	if n, err := l.Write([]byte("\nmore\n")); n != 1 || !errors.Is(err, os.ErrClosed) ||
		!errors.Is(stopped, os.ErrClosed) {
		t.Error(n, err, stopped)
	}
}

func TestIsDrawing(t *testing.T) {
	for _, p := range append([]picture.Protocol{imagesAuto}, picture.Protocols...) {
		if err := isDrawing(string(p)); err != nil {
			t.Error(p, err)
		}
	}
	for _, s := range []string{"", "Kitty", "png"} {
		if isDrawing(s) == nil {
			t.Errorf("%q is one", s)
		}
	}
}
