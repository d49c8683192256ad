// Package picture draws pictures on a person's terminal, among the lines of a program's output. Ask finds out which protocol the terminal
// has for that – kitty's, iTerm2's or sixel – by asking the terminal; Draw writes a picture in one of them.
//
// A picture may come from where nobody is trusted. Its bytes never reach the terminal: it is decoded, and what is drawn is encoded anew from
// its pixels. Package picture knows nothing of Python, and draws no SVG.
package picture

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	_ "image/gif"  // a form that is decoded, of animations the first picture
	_ "image/jpeg" // likewise
	"image/png"

	"github.com/mattn/go-sixel"
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // likewise
)

// Protocol is how a terminal is told to draw.
type Protocol string

// The protocols.
const (
	None   Protocol = "none"
	Kitty  Protocol = "kitty"  // https://sw.kovidgoyal.net/kitty/graphics-protocol
	ITerm2 Protocol = "iterm2" // https://iterm2.com/documentation-images.html
	Sixel  Protocol = "sixel"  // DEC STD 070, chapter 9
)

// Protocols are all of them, None included.
var Protocols = []Protocol{Kitty, ITerm2, Sixel, None}

const (
	// maxPixels bounds what a picture takes of memory while it is decoded: 8 bytes for each, and 20 in a progressive JPEG.
	maxPixels = 32 << 20
	// maxScans bounds how often a JPEG goes over its pixels: fifty bytes say that it does once more. Programs write a dozen at most.
	maxScans = 64
	// maxSixel is the width and height to which pictures are drawn by sixel: xterm leaves larger ones out.
	maxSixel = 1000
	// kittyChunk is how many bytes of base64 the protocol allows in one sequence.
	kittyChunk = 4096
)

// Draw returns what draws a picture – PNG, JPEG, GIF or WebP – by that protocol at the beginning of a line, and leaves the cursor at the beginning of
// the next one. A picture that is wider than width pixels is made smaller; 0 is any width. What is no picture, or one of more than 32
// megapixels or 64 scans, is an error. Draw by None is nothing.
func Draw(p Protocol, data []byte, width int) ([]byte, error) {
	if p == None {
		return nil, nil
	}
	img, err := decode(data)
	if err != nil {
		return nil, err
	}
	switch p {
	case Kitty:
		return kitty(within(img, width, 0))
	case ITerm2:
		return iterm2(within(img, width, 0))
	case Sixel:
		if width <= 0 || width > maxSixel {
			width = maxSixel
		}
		var b bytes.Buffer
		if err := sixel.NewEncoder(&b).Encode(within(img, width, maxSixel)); err != nil {
			return nil, fmt.Errorf("draw by sixel: %w", err)
		}
		return append(b.Bytes(), '\n'), nil
	}
	return nil, fmt.Errorf("no protocol %q for pictures", p)
}

// startOfScan is a marker of JPEG (ITU-T T.81, annex B), which is nothing else within a scan.
var startOfScan = []byte{0xff, 0xda}

// decode looks at the size before it makes room for the pixels.
func decode(data []byte) (image.Image, error) {
	c, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decode picture: %w", err)
	}
	if c.Width <= 0 || c.Height <= 0 || c.Width > maxPixels/c.Height {
		return nil, fmt.Errorf("a picture of %d x %d pixels is not drawn", c.Width, c.Height)
	}
	if format == "jpeg" && bytes.Count(data, startOfScan) > maxScans {
		return nil, fmt.Errorf("a picture of more than %d scans is not drawn", maxScans)
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decode picture: %w", err)
	}
	return img, nil
}

// within is img, made smaller if it is wider or higher than that; 0 is no bound.
func within(img image.Image, width, height int) image.Image {
	size := img.Bounds().Size()
	w, h := size.X, size.Y
	if width > 0 && w > width {
		w, h = width, max(1, h*width/w)
	}
	if height > 0 && h > height {
		w, h = max(1, w*height/h), height
	}
	if w == size.X && h == size.Y {
		return img
	}
	small := image.NewNRGBA(image.Rect(0, 0, w, h))
	draw.ApproxBiLinear.Scale(small, small.Bounds(), img, img.Bounds(), draw.Src, nil)
	return small
}

// encoded is img as PNG in base64.
func encoded(img image.Image) (string, int, error) {
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		return "", 0, fmt.Errorf("encode picture: %w", err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), b.Len(), nil
}

// kitty sends a PNG (f=100) in the sequence itself, to be drawn at once (a=T) and never answered (q=2): an answer would be read as typed.
func kitty(img image.Image) ([]byte, error) {
	text, _, err := encoded(img)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for keys := "a=T,f=100,q=2,"; ; keys = "" {
		n, more := min(kittyChunk, len(text)), 0
		if len(text) > n {
			more = 1
		}
		fmt.Fprintf(&b, "\x1b_G%sm=%d;%s\x1b\\", keys, more, text[:n])
		if text = text[n:]; more == 0 {
			break
		}
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

func iterm2(img image.Image) ([]byte, error) {
	text, size, err := encoded(img)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "\x1b]1337;File=inline=1;size=%d:%s\a\n", size, text), nil
}
