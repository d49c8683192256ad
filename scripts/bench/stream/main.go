// Command stream is both ends of the connections by which scripts/bench measures a network. It is
// static, so that it runs in any container.
//
//	stream serve         listens on port 9000 of every address
//	stream in ADDR       reads one stream for some seconds, and prints the rate in MiB/s
//	stream out ADDR      writes one, and prints the rate at which the other end had it
//	stream connect ADDR  connects, sends a byte and reads one, again and again, and prints how long each took, in milliseconds
//	stream web NAME...   serves HTTPS for names, and prints the certificate of its authority
//	stream requests URL  sends requests on one connection, and prints the milliseconds of each
//	stream events URL    reads server-sent events, and prints the milliseconds each was on its way
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	port     = "9000"
	chunk    = 128 << 10
	warmUp   = 500 * time.Millisecond // in which the windows of TCP open
	duration = 3 * time.Second
	connects = 200
)

func main() {
	err := errors.New("usage: stream serve | in ADDR | out ADDR | connect ADDR | web NAME... | " +
		"requests URL | events URL")
	switch {
	case len(os.Args) > 2 && os.Args[1] == "web":
		err = web(os.Args[2:])
	case len(os.Args) == 3 && os.Args[1] == "requests":
		err = requests(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "events":
		err = events(os.Args[2])
	case len(os.Args) == 2 && os.Args[1] == "serve":
		err = serve()
	case len(os.Args) == 3:
		switch addr := net.JoinHostPort(os.Args[2], port); os.Args[1] {
		case "in":
			err = in(addr)
		case "out":
			err = out(addr)
		case "connect":
			err = connect(addr)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stream:", err)
		os.Exit(1)
	}
}

// serve does what the first byte of each connection asks for: i sends zeros until the client has
// enough, o reads to the end and says how many bytes came and in how many nanoseconds, e sends the
// byte back.
func serve() error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", ":"+port)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			// A client that leaves in the middle is none of the server's business.
			_ = answer(c)
		}()
	}
}

func answer(c net.Conn) error {
	what := make([]byte, 1)
	if _, err := io.ReadFull(c, what); err != nil {
		return err
	}
	switch what[0] {
	case 'i':
		zeros := make([]byte, chunk)
		for {
			if _, err := c.Write(zeros); err != nil {
				return err
			}
		}
	case 'o':
		n, took, err := count(c)
		if err != nil {
			return err
		}
		return binary.Write(c, binary.BigEndian, [2]int64{n, int64(took)})
	}
	_, err := c.Write(what)
	return err
}

// count reads to the end, and returns how much came after the warm-up and in what time.
func count(c net.Conn) (n int64, took time.Duration, err error) {
	buf := make([]byte, chunk)
	began := time.Now()
	var from time.Time
	for {
		got, err := c.Read(buf)
		now := time.Now()
		switch {
		case errors.Is(err, io.EOF):
			return n, now.Sub(from), nil
		case err != nil:
			return n, 0, err
		case from.IsZero() && now.Sub(began) >= warmUp:
			from = now
		case !from.IsZero():
			n += int64(got)
		}
	}
}

func dial(addr string, what byte) (*net.TCPConn, error) {
	c, err := new(net.Dialer).DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{what}); err != nil {
		c.Close()
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%T is not TCP", c)
	}
	return tcp, nil
}

func in(addr string) error {
	c, err := dial(addr, 'i')
	if err != nil {
		return err
	}
	defer c.Close()
	// The read side is ended here, so that count takes it for the end.
	time.AfterFunc(warmUp+duration, func() { _ = c.CloseRead() })
	n, took, err := count(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	printRate(n, took)
	return nil
}

func out(addr string) error {
	c, err := dial(addr, 'o')
	if err != nil {
		return err
	}
	defer c.Close()
	zeros := make([]byte, chunk)
	for end := time.Now().Add(warmUp + duration); time.Now().Before(end); {
		if _, err := c.Write(zeros); err != nil {
			return err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	var had [2]int64
	if err := binary.Read(c, binary.BigEndian, &had); err != nil {
		return err
	}
	printRate(had[0], time.Duration(had[1]))
	return nil
}

func printRate(n int64, took time.Duration) {
	fmt.Println(float64(n) / (1 << 20) / took.Seconds())
}

func connect(addr string) error {
	for range connects {
		began := time.Now()
		c, err := dial(addr, 'e')
		if err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		took := time.Since(began)
		c.Close()
		if err != nil {
			return err
		}
		fmt.Println(float64(took.Microseconds()) / 1000)
	}
	return nil
}
