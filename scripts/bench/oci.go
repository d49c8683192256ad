package main

import (
	"context"
	"errors"
	"path/filepath"
)

// engineless: a daemon without a container engine, against Docker's own engine. The image is built
// before. It needs root.
func engineless(ctx context.Context, b *bench) (rows []row, err error) {
	d, err := b.launch(ctx, "engineless", "SANDBOXD_BACKEND=oci",
		"SANDBOXD_OCI_IMAGES="+filepath.Join(b.dir, "images"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.End(ctx)) }()
	l, err := b.control(ctx, d)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if _, err := l.command(ctx, "new first"); err != nil {
		return nil, err
	}
	defer func() {
		_, rmErr := l.command(context.WithoutCancel(ctx), "rm -f first")
		err = errors.Join(err, rmErr)
	}()
	boot, engine, err := boots(ctx, b, d)
	if err != nil {
		return nil, err
	}
	rate, engineRate, err := fifties(ctx, b, d)
	if err != nil {
		return nil, err
	}
	one := against("without an engine: create until the first command is done", "ms", boot, engine,
		"docker create+start", "≤ 60 ms", always)
	one.Passes = boot.Median <= 60
	return []row{one, against("without an engine: fifty sandboxes at once", "per second", rate,
		engineRate, "docker run", "≥ 5 ×", atLeast(5))}, nil
}
