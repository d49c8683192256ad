package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/mattn/go-sixel"
)

// plot is a picture with lines and noise: as PNG it takes several of kitty's sequences.
func plot(w, h int) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	n := uint32(1)
	for y := range h {
		for x := range w {
			n = n*1664525 + 1013904223
			img.SetNRGBA(x, y, color.NRGBA{uint8(x * 255 / w), uint8(y * 255 / h),
				uint8(n >> 24 & 0x3f), 255})
		}
	}
	return img
}

func asPNG(t testing.TB, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// chunk returns a chunk of PNG.
func chunk(kind string, data []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	out = append(append(out, kind...), data...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[4:]))
}

// header returns a PNG of that size without its pixels, and with what follows.
func header(w, h uint32, more ...[]byte) []byte {
	ihdr := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, w), h)
	return append([]byte("\x89PNG\r\n\x1a\n"),
		bytes.Join(append([][]byte{chunk("IHDR", append(ihdr, 8, 2, 0, 0, 0))}, more...), nil)...)
}

var (
	kittyForm = regexp.MustCompile(`^\x1b_G((?:a=T,f=100,q=2,)?)m=([01]);([A-Za-z0-9+/=]+)\x1b\\`)
	itermForm = regexp.MustCompile(
		`^\x1b\]1337;File=inline=1;size=([0-9]+):([A-Za-z0-9+/=]+)\x07\n$`)
)

// shown parses the output of Draw like a terminal, and fails on anything else in it.
func shown(t testing.TB, p Protocol, drawn []byte) image.Image {
	t.Helper()
	text := ""
	switch p {
	case Kitty:
		for first := true; ; first = false {
			m := kittyForm.FindSubmatch(drawn)
			if m == nil || (len(m[1]) > 0) != first || len(m[3]) > kittyChunk {
				t.Fatalf("no sequence of kitty's: %.80q", drawn)
			}
			text += string(m[3])
			drawn = drawn[len(m[0]):]
			if m[2][0] == '0' {
				break
			}
			if len(m[3])%4 != 0 {
				t.Fatalf("a sequence that is not the last has %d bytes of base64", len(m[3]))
			}
		}
		if string(drawn) != "\n" {
			t.Fatalf("after the picture: %.80q", drawn)
		}
	case ITerm2:
		m := itermForm.FindSubmatch(drawn)
		if m == nil {
			t.Fatalf("no sequence of iTerm2's: %.80q", drawn)
		}
		text = string(m[2])
	case Sixel:
		if !regexp.MustCompile(`^\x1bP[0-9;]*q[!-~]+\x1b\\\n$`).Match(drawn) {
			t.Fatalf("no sixel: %.80q", drawn)
		}
		var img image.Image
		if err := sixel.NewDecoder(bytes.NewReader(drawn)).Decode(&img); err != nil {
			t.Fatal(err)
		}
		return img
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// distance is the average difference of colours between two pictures of the same size, of 255.
func distance(t testing.TB, a, b image.Image) float64 {
	t.Helper()
	if a.Bounds().Size() != b.Bounds().Size() {
		t.Fatalf("%v and %v pixels", a.Bounds().Size(), b.Bounds().Size())
	}
	sum, size, from, other := 0.0, a.Bounds().Size(), a.Bounds().Min, b.Bounds().Min
	for y := range size.Y {
		for x := range size.X {
			p, q := color.NRGBAModel.Convert(a.At(from.X+x, from.Y+y)).(color.NRGBA),
				color.NRGBAModel.Convert(b.At(other.X+x, other.Y+y)).(color.NRGBA)
			sum += math.Abs(float64(p.R)-float64(q.R)) + math.Abs(float64(p.G)-float64(q.G)) +
				math.Abs(float64(p.B)-float64(q.B)) + math.Abs(float64(p.A)-float64(q.A))
		}
	}
	return sum / float64(size.X*size.Y)
}

func TestDraw(t *testing.T) {
	small := plot(200, 120)
	var jpg, moving bytes.Buffer
	if err := jpeg.Encode(&jpg, small, nil); err != nil {
		t.Fatal(err)
	}
	frame := image.NewPaletted(image.Rect(0, 0, 200, 120), color.Palette{color.White, color.Black})
	if err := gif.EncodeAll(&moving, &gif.GIF{Image: []*image.Paletted{frame, frame},
		Delay: []int{1, 1}}); err != nil {
		t.Fatal(err)
	}
	white := image.NewNRGBA(frame.Bounds())
	for i := range white.Pix {
		white.Pix[i] = 255
	}
	for _, tt := range []struct {
		name  string
		data  []byte
		width int
		want  image.Image // same size
		exact bool        // and same pixels, where the protocol has them
	}{
		{"PNG", asPNG(t, small), 0, small, true},
		{"as wide as the terminal", asPNG(t, small), 200, small, true},
		{"JPEG", jpg.Bytes(), 800, small, false},
		{"an animation", moving.Bytes(), 800, white, true},
		{"too wide", asPNG(t, plot(600, 360)), 200, small, false},
	} {
		for _, p := range []Protocol{Kitty, ITerm2, Sixel} {
			t.Run(tt.name+" by "+string(p), func(t *testing.T) {
				drawn, err := Draw(p, tt.data, tt.width)
				if err != nil {
					t.Fatal(err)
				}
				got := distance(t, shown(t, p, drawn), tt.want)
				if most := 40.0; got > most || tt.exact && p != Sixel && got > 0 {
					t.Errorf("the pixels are off by %v", got)
				}
			})
		}
	}
	if drawn, err := Draw(None, asPNG(t, small), 0); drawn != nil || err != nil {
		t.Errorf("by none: %q, %v", drawn, err)
	}
	if _, err := Draw("tektronix", asPNG(t, small), 0); err == nil {
		t.Error("by a protocol that is none")
	}
}

// xterm drops pictures that are larger than 1000 pixels either way.
func TestSixelIsBounded(t *testing.T) {
	for _, size := range []image.Point{{2000, 50}, {50, 2000}, {1500, 1200}} {
		drawn, err := Draw(Sixel, asPNG(t, image.NewNRGBA(image.Rectangle{Max: size})), 4000)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`^\x1bP[0-9;]*q"1;1;([0-9]+);([0-9]+)`).FindSubmatch(drawn)
		if m == nil || len(m[1]) > 4 || string(m[1]) > "999" && string(m[1]) != "1000" ||
			len(m[2]) > 4 || string(m[2]) > "999" && string(m[2]) != "1000" {
			t.Errorf("%v: %.60q", size, drawn)
		}
	}
}

// Other data in a picture than pixels never reaches the terminal, and invalid pictures are not
// drawn.
func TestNothingIsSmuggled(t *testing.T) {
	const evil = "\x1b]52;c;ZXZpbA==\a\x1b[31mEVIL\x1b\\"
	honest := asPNG(t, plot(20, 20))
	iend := len(honest) - 12
	for name, data := range map[string][]byte{
		"behind the end":   append(bytes.Clone(honest), evil...),
		"in a text chunk":  append(append(bytes.Clone(honest[:iend]), chunk("tEXt", []byte("Comment\x00"+evil))...), honest[iend:]...),
		"in an odd chunk":  append(append(bytes.Clone(honest[:iend]), chunk("evIl", []byte(evil))...), honest[iend:]...),
		"in place of it":   []byte(evil),
		"behind the magic": []byte("\x89PNG\r\n\x1a\n" + evil),
	} {
		for _, p := range []Protocol{Kitty, ITerm2, Sixel} {
			drawn, err := Draw(p, data, 0)
			if err != nil {
				if bytes.HasPrefix(data, honest[:iend]) {
					t.Errorf("%s by %s: %v", name, p, err)
				}
				continue
			}
			shown(t, p, drawn)
			if s := string(drawn); strings.Contains(s, "EVIL") ||
				strings.Contains(s, base64.StdEncoding.EncodeToString([]byte(evil))[4:20]) {
				t.Errorf("%s by %s: %.200q", name, p, drawn)
			}
			if img := shown(t, p, drawn); p == Kitty && distance(t, img, plot(20, 20)) != 0 {
				t.Errorf("%s: another picture", name)
			}
		}
	}
}

// A few bytes may declare a huge number of pixels.
func TestBomb(t *testing.T) {
	var nothing bytes.Buffer
	z := zlib.NewWriter(&nothing)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"many pixels":  header(1<<20, 1<<20, chunk("IDAT", nothing.Bytes()), chunk("IEND", nil)),
		"one too many": header(maxPixels+1, 1, chunk("IDAT", nothing.Bytes()), chunk("IEND", nil)),
		"none":         header(0, 10, chunk("IEND", nil)),
		"a GIF":        []byte("GIF89a\xff\xff\xff\xff\x00\x00\x00"),
		"cut off":      asPNG(t, plot(50, 50))[:2000],
		"empty":        nil,
		"SVG":          []byte("<svg xmlns='http://www.w3.org/2000/svg'/>"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if drawn, err := Draw(Kitty, data, 0); err == nil {
			t.Errorf("%s: %.60q", name, drawn)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
			t.Errorf("%s took %d bytes of memory", name, took)
		}
	}
}

// A few more bytes may declare another pass over all pixels.
func TestScans(t *testing.T) {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, plot(20, 20), nil); err != nil {
		t.Fatal(err)
	}
	head, scan, _ := bytes.Cut(b.Bytes()[:b.Len()-2], startOfScan)
	scan = append(bytes.Clone(startOfScan), scan...)
	for n, drawn := range map[int]bool{1: true, maxScans: true, maxScans + 1: false} {
		data := append(slices.Concat(head, bytes.Repeat(scan, n)), 0xff, 0xd9)
		if _, err := Draw(Kitty, data, 0); (err == nil) != drawn {
			t.Errorf("%d scans: %v", n, err)
		}
	}
}

// For any bytes, the output is a complete sequence of the protocol.
func FuzzDraw(f *testing.F) {
	f.Add(asPNG(f, plot(9, 7)), 100)
	f.Add(
		[]byte(
			"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"), 1)
	f.Add(header(4, 4), 0)
	f.Fuzz(func(t *testing.T, data []byte, width int) {
		if c, _, err := image.DecodeConfig(bytes.NewReader(data)); err == nil &&
			c.Width*c.Height > 1<<20 {
			return // only slow
		}
		for _, p := range []Protocol{Kitty, ITerm2, Sixel} {
			if drawn, err := Draw(p, data, width); err == nil {
				shown(t, p, drawn)
			}
		}
	})
}
