package python

import (
	"slices"
	"strconv"
	"sync"
)

const (
	maxImages     = 64       // stored images of an Interpreter
	maxImageBytes = 64 << 20 // total bytes of them
)

// Image is a picture that code displayed.
type Image struct {
	ID   string `json:"id"` // unique within its context
	Type string `json:"type"`
	Size int    `json:"size"` // bytes
	Data []byte `json:"-"`
}

// gallery stores the last images of all contexts of an Interpreter.
type gallery struct {
	mu     sync.Mutex
	most   int
	size   int      // guarded by mu
	images []framed // guarded by mu; the oldest first
}

type framed struct {
	Image
	of *Context
}

// add stores the image of o, if it has one, and sets o.Image to its ID.
func (g *gallery) add(of *Context, o *Output) {
	mime, data := o.Picture()
	if mime == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	of.pictures++
	o.Image = strconv.Itoa(of.pictures)
	if len(data) > g.most {
		return
	}
	g.images = append(
		g.images,
		framed{Image{ID: o.Image, Type: mime, Size: len(data), Data: data}, of},
	)
	g.size += len(data)
	for len(g.images) > maxImages || g.size > g.most {
		g.size -= g.images[0].Size
		g.images = slices.Delete(g.images, 0, 1)
	}
}

// forget drops the images of a context.
func (g *gallery) forget(of *Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.images = slices.DeleteFunc(g.images, func(f framed) bool {
		if f.of == of {
			g.size -= f.Size
		}
		return f.of == of
	})
}

// Images returns the pictures that code of this context displayed since this client opened it,
// oldest first. The Interpreter stores the last 64 pictures of all its contexts, up to
// Limits.Images bytes.
func (c *Context) Images() []Image {
	g := &c.in.gallery
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []Image
	for _, f := range g.images {
		if f.of == c {
			all = append(all, f.Image)
		}
	}
	return all
}

// Image returns the picture of Images with that ID.
func (c *Context) Image(id string) (Image, bool) {
	for _, i := range c.Images() {
		if i.ID == id {
			return i, true
		}
	}
	return Image{}, false
}
