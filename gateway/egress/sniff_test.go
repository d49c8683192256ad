package egress

import (
	"bytes"
	"crypto/tls"
	"net"
	"strings"
	"testing"
)

// hello returns the ClientHello that Go's TLS sends for name.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	got := make(chan []byte)
	go func() {
		b := make([]byte, 16<<10)
		n, _ := server.Read(b)
		server.Close()
		got <- b[:n]
	}()
	_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}).Handshake()
	client.Close()
	return <-got
}

// split cuts the message in a record into records of at most size.
func split(record []byte, size int) (out []byte) {
	for rest := record[5:]; len(rest) > 0; {
		n := min(size, len(rest))
		out = append(append(out, 22, 3, 1, byte(n>>8), byte(n)), rest[:n]...)
		rest = rest[n:]
	}
	return out
}

func TestOpeningOfTLS(t *testing.T) {
	whole := hello(t, "cdn.test")
	for name, c := range map[string]struct {
		b    []byte
		what opening
		said string
	}{
		"named":      {whole, openingNamed, "cdn.test"},
		"records":    {split(whole, 7), openingNamed, "cdn.test"},
		"unnamed":    {hello(t, ""), openingUnnamed, ""},
		"half":       {whole[:len(whole)/2], openingPartial, ""},
		"alert":      {[]byte{22, 3, 1, 0, 2, 2, 40}, openingUnnamed, ""},
		"empty":      {[]byte{22, 3, 1, 0, 0}, openingUnnamed, ""},
		"version":    {[]byte{22, 9, 1, 0, 5}, openingUnnamed, ""},
		"endless":    {split(append([]byte{22, 3, 1, 0, 0, 1, 0xff, 0xff, 0xff}, make([]byte, 20)...), 9), openingUnnamed, ""},
		"upper case": {bytes.Replace(whole, []byte("cdn.test"), []byte("CDN.test"), 1), openingNamed, "cdn.test"},
		"NUL":        {bytes.Replace(whole, []byte("cdn.test"), []byte("cdn\x00test"), 1), openingUnnamed, ""},
		"encrypted":  {bytes.Replace(bytes.Clone(whole), []byte{0, 0x2b, 0}, []byte{0xfe, 0x0d, 0}, 1), openingUnnamed, ""},
	} {
		if what, said := readOpening(c.b); what != c.what || said != c.said {
			t.Errorf("%s: got %v %q, want %v %q", name, what, said, c.what, c.said)
		}
	}
	// A name is found when its last byte is there, and not before.
	for n := range whole {
		if what, _ := readOpening(whole[:n]); what != openingPartial {
			t.Fatalf("%d bytes of %d: %v", n, len(whole), what)
		}
	}
}

func TestOpeningOfHTTP(t *testing.T) {
	for text, want := range map[string]struct {
		what opening
		said string
	}{
		"GET / HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                        {openingNamed, "cdn.test"},
		"GET / HTTP/1.1\nhost:cdn.test:8080 \n\n":                         {openingNamed, "cdn.test"},
		"\r\n\r\nPOST / HTTP/1.1\r\nA: b\r\nHOST: CDN.test.\r\n\r\nHost:": {openingNamed, "cdn.test"},
		"GET http://cdn.test/x HTTP/1.1\r\nHost: cdn.test\r\n\r\n":        {openingNamed, "cdn.test"},
		"GET http://cdn.test:80?a HTTP/1.1\r\nHost: cdn.test\r\n\r\n":     {openingNamed, "cdn.test"},
		"GET http://x.test/ HTTP/1.1\r\nHost: cdn.test\r\n\r\n":           {openingUnnamed, ""},
		"GET http://cdn.test@x.test/ HTTP/1.1\r\nHost: cdn.test\r\n\r\n":  {openingUnnamed, ""},
		"FOO / HTTP/1.1\r\nHost: x.test\r\n\r\n":                          {openingNamed, "x.test"},
		"GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n":          {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost: a.test\r\n b.test\r\n\r\n":               {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n":                         {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n":                        {openingUnnamed, ""},
		"GET / HTTP/1.0\r\n\r\n":                                          {openingUnnamed, ""},
		"GET / x HTTP/1.1\r\nHost: a.test\r\n\r\n":                        {openingUnnamed, ""},
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost: cdn.test\r\n":                            {openingPartial, ""},
		"GET / HTTP/1.1\r\nHost: cdn.test":                                {openingPartial, ""},
		"GET":                                                             {openingPartial, ""},
		"":                                                                {openingPartial, ""},
		"\r\n":                                                            {openingPartial, ""},
		"SSH-2.0-OpenSSH_9.9\r\n":                                         {openingOther, ""},
		"get key\r\n":                                                     {openingOther, ""},
		"*1\r\n$4\r\nPING\r\n":                                            {openingOther, ""},
		"0033git-upload-pack /a.git\x00host=a.test\x00":                   {openingOther, ""},
		"\x00\x00\x00\x08\x04\xd2\x16\x2f":                                {openingOther, ""}, // PostgreSQL asks for TLS
		"GET / HTTP/1.1\r\nA: " + strings.Repeat("a", maxOpening):         {openingUnnamed, ""},
		strings.Repeat("a", maxOpening):                                   {openingUnnamed, ""},
	} {
		if what, said := readOpening([]byte(text)); what != want.what || said != want.said {
			t.Errorf("%.60q: got %v %q, want %v %q", text, what, said, want.what, want.said)
		}
	}
}

// What has been decided on stays, whatever follows; and no more than maxOpening is waited for.
func FuzzOpening(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: cdn.test\r\n\r\n"), []byte("x"))
	f.Add(hello(f, "cdn.test"), []byte{0})
	f.Add(split(hello(f, "cdn.test"), 9), []byte{22})
	f.Add([]byte{22, 3, 1}, []byte{0, 1})
	f.Fuzz(func(t *testing.T, b, more []byte) {
		what, said := readOpening(b)
		if (what == openingNamed) != (said != "") {
			t.Fatalf("%v with %q", what, said)
		}
		if what == openingPartial {
			if len(b) >= maxOpening {
				t.Fatalf("%d bytes, and undecided", len(b))
			}
			return
		}
		if again, name := readOpening(append(bytes.Clone(b), more...)); again != what || name != said {
			t.Fatalf("%v %q became %v %q", what, said, again, name)
		}
	})
}
