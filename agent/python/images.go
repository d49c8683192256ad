package python

import (
	"slices"
	"strconv"
	"sync"
)

const (
	maxImages     = 64       // that an Interpreter remembers
	maxImageBytes = 64 << 20 // of them together
)

// Image is a picture that code showed.
type Image struct {
	ID   string `json:"id"` // within its context
	Type string `json:"type"`
	Size int    `json:"size"` // bytes
	Data []byte `json:"-"`
}

// gallery remembers the last images of an Interpreter, of all its contexts together: any number of those may be there.
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

// add remembers o's image, if it has one, and puts its id into o.
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
	g.images = append(g.images, framed{Image{ID: o.Image, Type: mime, Size: len(data), Data: data}, of})
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

// Images lists the pictures that code in this context showed since it was opened here, the oldest first: those among the last 64 of all
// contexts of its Interpreter, of which no more than 64 MiB are kept.
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

// Image returns one of Images.
func (c *Context) Image(id string) (Image, bool) {
	for _, i := range c.Images() {
		if i.ID == id {
			return i, true
		}
	}
	return Image{}, false
}
