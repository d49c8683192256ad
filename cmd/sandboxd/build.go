package main

import (
	"bufio"
	"context"
	"io"

	"github.com/sandboxd/sandboxd/images"
)

// buildImage builds an image in the engine at host, from the recipe that this program has.
func buildImage(ctx context.Context, host, ref string, progress func(string)) error {
	return withLines(progress, func(log io.Writer) error {
		return images.Build(ctx, host, ref, log)
	})
}

// withLines passes each line that do writes to progress. It returns when all are passed.
func withLines(progress func(string), do func(log io.Writer) error) error {
	r, w := io.Pipe()
	said := make(chan struct{})
	go func() {
		defer close(said)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			progress(lines.Text())
		}
		// a line too long for the scanner does not block the writer
		r.CloseWithError(io.ErrClosedPipe)
	}()
	err := do(w)
	w.Close()
	<-said
	return err
}
