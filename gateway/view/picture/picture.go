// Package picture draws pictures on a person's terminal, among the lines of a program's output. Ask
// asks the terminal which protocol it supports – kitty's, iTerm2's or sixel; Draw writes a picture
// in one of them.
//
// A picture may come from an untrusted source. Its bytes never reach the terminal: Draw decodes it
// and encodes its pixels anew. Package picture knows nothing of Python, and draws no SVG.
package picture

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	_ "image/gif"  // a supported format; of animations the first picture
	_ "image/jpeg" // likewise
	"image/png"

	"github.com/mattn/go-sixel"
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // likewise
)

// Protocol is how a terminal draws pictures.
type Protocol string

// The protocols.
const (
	None   Protocol = "none"
	Kitty  Protocol = "kitty"  // https://sw.kovidgoyal.net/kitty/graphics-protocol
	ITerm2 Protocol = "iterm2" // https://iterm2.com/documentation-images.html
	Sixel  Protocol = "sixel"  // DEC STD 070, chapter 9
)

// Protocols are all protocols, None included.
var Protocols = []Protocol{Kitty, ITerm2, Sixel, None}

const (
	// maxPixels bounds the memory for decoding a picture: 8 bytes a pixel, and 20 in a progressive
	// JPEG.
	maxPixels = 32 << 20
	// maxScans bounds the passes of a JPEG over its pixels: fifty bytes add another. Programs write
	// a dozen at most.
	maxScans = 64
	// maxSixel is the largest width and height of sixel pictures: xterm drops larger ones.
	maxSixel = 1000
	// kittyChunk is how many bytes of base64 the protocol allows in one sequence.
	kittyChunk = 4096
)

// Draw returns bytes that draw a picture – PNG, JPEG, GIF or WebP – by that protocol at the
// beginning of a line, and leave the cursor at the beginning of the next one. It shrinks a picture
// that is wider than width pixels; 0 is any width. Other data, and a picture of more than 32
// megapixels or 64 scans, are errors. Draw by None returns nothing.
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

// startOfScan is a marker of JPEG (ITU-T T.81, annex B), which cannot occur within a scan.
var startOfScan = []byte{0xff, 0xda}

// decode checks the size before it allocates the pixels.
func decode(data []byte) (image.Image, error) {
	c, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decode picture: %w", err)
	}
	if c.Width <= 0 || c.Height <= 0 || c.Width > maxPixels/c.Height {
		return nil, fmt.Errorf("picture too large: %d x %d pixels", c.Width, c.Height)
	}
	if format == "jpeg" && bytes.Count(data, startOfScan) > maxScans {
		return nil, fmt.Errorf("picture too complex: more than %d scans", maxScans)
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decode picture: %w", err)
	}
	return img, nil
}

// within returns img, shrunk if it is wider or higher than the bounds; 0 is no bound.
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

// encoded returns img as PNG in base64.
func encoded(img image.Image) (string, int, error) {
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		return "", 0, fmt.Errorf("encode picture: %w", err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), b.Len(), nil
}

// kitty returns a sequence that contains a PNG (f=100), to be drawn at once (a=T) and never
// answered (q=2): an answer would be read as typed.
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
