package python

import (
	"slices"
	"strconv"
	"sync"
)

const (
	maxImages     = 64       // that a context remembers
	maxImageBytes = 64 << 20 // of them together
)

// Image is a picture that code showed.
type Image struct {
	ID   string `json:"id"` // within its context
	Type string `json:"type"`
	Size int    `json:"size"` // bytes
	Data []byte `json:"-"`
}

// gallery remembers the last images of a context.
type gallery struct {
	mu     sync.Mutex
	made   int     // guarded by mu
	size   int     // guarded by mu
	images []Image // guarded by mu; the oldest first
}

// add remembers o's image, if it has one, and puts its id into o.
func (g *gallery) add(o *Output) {
	mime, data := o.Picture()
	if mime == "" || len(data) > maxImageBytes {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.made++
	o.Image = strconv.Itoa(g.made)
	g.images = append(g.images, Image{ID: o.Image, Type: mime, Size: len(data), Data: data})
	g.size += len(data)
	for len(g.images) > maxImages || g.size > maxImageBytes {
		g.size -= g.images[0].Size
		g.images = slices.Delete(g.images, 0, 1)
	}
}

// Images lists the pictures that code in this context showed since it was opened here, the oldest first: the last 64, and no more than
// 64 MiB of them.
func (c *Context) Images() []Image {
	c.gallery.mu.Lock()
	defer c.gallery.mu.Unlock()
	return slices.Clone(c.gallery.images)
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
