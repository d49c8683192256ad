package modeltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Main runs a Server as a program, for scripts: model [-no-tools] STEPS URLFILE. It reads steps
// from STEPS, serves them on a local address and writes the URL to URLFILE. It prints each request
// on a line, and exits with 0 on INT or TERM.
func Main() int {
	args, s := os.Args[1:], New()
	if len(args) > 0 && args[0] == "-no-tools" {
		args, s.NoTools = args[1:], true
	}
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: model [-no-tools] STEPS URLFILE")
		return 2
	}
	if err := s.listen(args[0], args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		return 1
	}
	return 0
}

func (s *Server) listen(steps, urlFile string, out io.Writer) error {
	f, err := os.Open(steps)
	if err != nil {
		return err
	}
	defer f.Close()
	if s.steps, err = Read(f); err != nil {
		return fmt.Errorf("%s: %w", steps, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // for as long as the program runs
	if err != nil {
		return err
	}
	defer l.Close()
	// Rename the file, so that a reader never sees a part of it.
	if err := os.WriteFile(urlFile+".new", []byte("http://"+l.Addr().String()+"/v1"),
		0o644); err != nil {
		return err
	}
	if err := os.Rename(urlFile+".new", urlFile); err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(out, r.Method, r.URL.Path)
			s.ServeHTTP(w, r)
		}),
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
