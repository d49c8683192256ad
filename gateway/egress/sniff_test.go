package egress

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
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
	_ = tls.Client(client, &tls.Config{ServerName: name,
		InsecureSkipVerify: name == ""}).Handshake()
	client.Close()
	return <-got
}

// split splits the message in a record into records of at most size.
func split(record []byte, size int) (out []byte) {
	for rest := record[5:]; len(rest) > 0; {
		n := min(size, len(rest))
		out = append(append(out, 22, 3, 1, byte(n>>8), byte(n)), rest[:n]...)
		rest = rest[n:]
	}
	return out
}

// lengthened adds bytes to the only record of a hello.
func lengthened(hello, more []byte) []byte {
	out := append(bytes.Clone(hello), more...)
	binary.BigEndian.PutUint16(out[3:], uint16(len(out)-5))
	return out
}

// twice repeats the extension with the name, in place of session tickets.
func twice(hello []byte) []byte {
	at := bytes.Index(hello, []byte("cdn.test")) - 9
	name := hello[at : at+17]
	return grown(hello, name)
}

// grown adds an extension at the end of a hello in one record.
func grown(hello, extension []byte) []byte {
	out := append(bytes.Clone(hello), extension...)
	at := 5 + 4 + 2 + 32
	at += 1 + int(out[at])
	at += 2 + int(binary.BigEndian.Uint16(out[at:]))
	at += 1 + int(out[at])
	binary.BigEndian.PutUint16(out[3:], uint16(len(out)-5))
	binary.BigEndian.PutUint16(out[7:], uint16(len(out)-9))
	binary.BigEndian.PutUint16(out[at:], uint16(len(out)-at-2))
	return out
}

// built returns a ClientHello in one record with only these extensions.
func built(extensions ...[]byte) []byte {
	all := slices.Concat(extensions...)
	hello := slices.Concat(make([]byte, 2+32+1), []byte{0, 2, 0x13, 1, 1, 0}, sized16(all))
	hello = slices.Concat([]byte{1, 0}, sized16(hello))
	return append([]byte{22, 3, 1}, sized16(hello)...)
}

// sized16 prefixes b with its length.
func sized16(b []byte) []byte { return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...) }

func extension(kind uint16, data []byte) []byte {
	return append([]byte{byte(kind >> 8), byte(kind)}, sized16(data)...)
}

// named returns an entry of the extension server_name.
func named(kind byte, name string) []byte { return append([]byte{kind}, sized16([]byte(name))...) }

// names returns the extension server_name with these entries.
func names(list ...[]byte) []byte { return extension(0, sized16(slices.Concat(list...))) }

// sslv2 is a ClientHello in SSLv2 format (RFC 5246, appendix E.2).
var sslv2 = append([]byte{0x80, 9 + 3 + 16, 1, 3, 3, 0, 3, 0, 0, 0, 16, 0, 0x2f, 0},
	make([]byte, 16)...)

func TestOpeningOfTLS(t *testing.T) {
	whole, cdn := hello(t, "cdn.test"), named(0, "cdn.test")
	for name, c := range map[string]struct {
		b    []byte
		what opening
		said string
	}{
		"named":                 {whole, openingNamed, "cdn.test"},
		"records":               {split(whole, 7), openingNamed, "cdn.test"},
		"unnamed":               {hello(t, ""), openingUnnamed, ""},
		"half":                  {whole[:len(whole)/2], openingPartial, ""},
		"alert":                 {[]byte{22, 3, 1, 0, 2, 2, 40}, openingUnnamed, ""},
		"empty":                 {[]byte{22, 3, 1, 0, 0}, openingUnnamed, ""},
		"version":               {[]byte{22, 9, 1, 0, 5}, openingUnnamed, ""},
		"endless":               {split(append([]byte{22, 3, 1, 0, 0, 1, 0xff, 0xff, 0xff}, make([]byte, 20)...), 9), openingUnnamed, ""},
		"upper case":            {bytes.Replace(whole, []byte("cdn.test"), []byte("CDN.test"), 1), openingNamed, "cdn.test"},
		"NUL":                   {bytes.Replace(whole, []byte("cdn.test"), []byte("cdn\x00test"), 1), openingUnnamed, ""},
		"after an alert":        {append([]byte{21, 3, 1, 0, 2, 1, 112}, whole...), openingUnnamed, ""},
		"after a cipher change": {append([]byte{20, 3, 1, 0, 1, 1}, whole...), openingUnnamed, ""},
		"after a heartbeat":     {append([]byte{24, 3, 1, 0, 3, 1, 0, 0}, whole...), openingUnnamed, ""},
		"after early data":      {append([]byte{23, 3, 1, 0, 1, 0}, whole...), openingUnnamed, ""},
		"after an empty record": {append([]byte{22, 3, 1, 0, 0}, whole...), openingUnnamed, ""},
		"SSLv2":                 {sslv2, openingUnknown, ""},
		"alert between records": {append(append(split(whole, 100)[:105:105], 21, 3, 1, 0, 2, 1, 0), split(whole, 100)[105:]...), openingUnnamed, ""},
		"more in its record":    {lengthened(whole, []byte{1, 0, 0, 0}), openingUnnamed, ""},
		"dot":                   {bytes.Replace(whole, []byte("cdn.test"), []byte("cdntest."), 1), openingUnnamed, ""},
		"address":               {bytes.Replace(whole, []byte("cdn.test"), []byte("10.0.0.1"), 1), openingUnnamed, ""},
		"space":                 {bytes.Replace(whole, []byte("cdn.test"), []byte("cdn test"), 1), openingUnnamed, ""},
		"ESNI":                  {bytes.Replace(bytes.Clone(whole), []byte{0, 0x2b, 0}, []byte{0xff, 0xce, 0}, 1), openingUnnamed, ""},
		"draft of ECH":          {bytes.Replace(bytes.Clone(whole), []byte{0, 0x2b, 0}, []byte{0xfe, 0x08, 0}, 1), openingUnnamed, ""},
		"two names":             {twice(whole), openingUnnamed, ""},
		"built":                 {built(names(cdn)), openingNamed, "cdn.test"},
		"another kind of name":  {built(names(named(1, "x.test"))), openingUnnamed, ""},
		"two kinds of names":    {built(names(cdn, named(1, "x.test"))), openingUnnamed, ""},
		"the other kind first":  {built(names(named(1, "x.test"), cdn)), openingUnnamed, ""},
		"two of one kind":       {built(names(cdn, named(0, "x.test"))), openingUnnamed, ""},
		"no name in the list":   {built(names()), openingUnnamed, ""},
		"an empty name":         {built(names(named(0, ""))), openingUnnamed, ""},
		"half a name":           {built(names(cdn[:len(cdn)-1])), openingUnnamed, ""},
		"behind the list":       {built(extension(0, append(sized16(cdn), 0))), openingUnnamed, ""},
		"before the end":        {built(extension(0, append([]byte{0, 20}, cdn...))), openingUnnamed, ""},
		"a long name":           {built(names(named(0, strings.Repeat("a.", 200)))), openingUnnamed, ""},
		"no extension":          {built(), openingUnnamed, ""},
		"half an extension":     {built(names(cdn), []byte{0, 1, 0, 9}), openingUnnamed, ""},
		"unknown extension":     {built(extension(0xfafa, cdn), names(cdn)), openingNamed, "cdn.test"},
		"of another extension":  {built(extension(0xfafa, names(cdn)), names(named(0, "x.test"))), openingNamed, "x.test"},
		"behind the message":    {append(built(names(cdn)), 22, 3, 1, 0, 1, 1), openingNamed, "cdn.test"},
		"inner hello":           {built(names(cdn), extension(0xfe0d, []byte{1})), openingUnnamed, ""},
		"encrypted":             {bytes.Replace(bytes.Clone(whole), []byte{0, 0x2b, 0}, []byte{0xfe, 0x0d, 0}, 1), openingUnnamed, ""},
	} {
		if got, ok := nameByTLS(c.b); c.what == openingNamed &&
			(!ok || !strings.EqualFold(got, c.said)) {
			t.Errorf("%s: crypto/tls reads %q, %v", name, got, ok)
		}
		if what, said, _ := readOpening(c.b); what != c.what || said != c.said {
			t.Errorf("%s: got %v %q, want %v %q", name, what, said, c.what, c.said)
		}
	}
	// A name is found with its last byte, and not before.
	for n := range whole {
		if what, _, _ := readOpening(whole[:n]); what != openingPartial {
			t.Fatalf("%d bytes of %d: %v", n, len(whole), what)
		}
	}
}

func TestOpeningOfHTTP(t *testing.T) {
	for text, want := range map[string]struct {
		what opening
		said string
	}{
		"GET / HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                    {openingNamed, "cdn.test"},
		"GET / HTTP/1.1\r\nhost:cdn.test:8080 \r\n\r\n":               {openingNamed, "cdn.test"},
		"get / HTTP/1.1\r\nhost:\tcdn.test\r\n\r\n":                   {openingNamed, "cdn.test"},
		"OPTIONS * HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                {openingNamed, "cdn.test"},
		"CONNECT cdn.test:443 HTTP/1.1\r\nHost: cdn.test:443\r\n\r\n": {openingNamed, "cdn.test"},
		"SSH-2.0-x / HTTP/1.1\r\nHost: cdn.test\r\n\r\n":              {openingNamed, "cdn.test"},
		// Another name, or one that a server may parse differently.
		"CONNECT x.test:443 HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                  {openingUnnamed, ""},
		"CONNECT / HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                           {openingUnnamed, ""},
		"GET x.test HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                          {openingUnnamed, ""},
		"GET http:x.test/ HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                    {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nA: b\rHost: x.test\r\nHost: cdn.test\r\n\r\n":         {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nA: b\nHost: cdn.test\n\nB: c\r\nHost: x.test\r\n\r\n": {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nA: b\x00\r\nHost: cdn.test\r\n\r\n":                   {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost\xa0: x.test\r\nHost: cdn.test\r\n\r\n":           {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost: cdn.test, x.test\r\n\r\n":                       {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost: cdn.test:80:x\r\n\r\n":                          {openingUnnamed, ""},
		"GET / HTTP/1.1\r\nHost: x.test@cdn.test\r\n\r\n":                        {openingUnnamed, ""},
		"GET / HTTP/1.1x\r\nHost: cdn.test\r\n\r\n":                              {openingUnnamed, ""},
		"GET / HTTP/1.1 \r\nHost: cdn.test\r\n\r\n":                              {openingUnnamed, ""},
		"GET\t/\tHTTP/1.1\r\nHost: cdn.test\r\n\r\n":                             {openingUnnamed, ""},
		"GET / HTTP/0.9\r\nHost: cdn.test\r\n\r\n":                               {openingUnnamed, ""},
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00":                   {openingUnnamed, ""},
		" GET / HTTP/1.1\r\nHost: cdn.test\r\n\r\n":                              {openingUnknown, ""},
		"GET / HTTP/1.1\nhost:cdn.test:8080 \n\n":                                {openingUnknown, ""},
		"GET /\x01 HTTP/1.1\r\nHost: x.test\r\n\r\n":                             {openingUnknown, ""},
		"\x00GET / HTTP/1.1\r\nHost: x.test\r\n\r\n":                             {openingUnknown, ""},
		"\xef\xbb\xbfGET / HTTP/1.1\r\nHost: x.test\r\n\r\n":                     {openingUnknown, ""},
		"GET /\r\n":                                                       {openingUnknown, ""},
		"GET http://x.test/\r\n":                                          {openingUnknown, ""},
		"GET http://x.test/ \r\n\r\n":                                     {openingUnknown, ""},
		"FOO\r\nGET / HTTP/1.1\r\nHost: x.test\r\n\r\n":                   {openingUnknown, ""},
		"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n":                        {openingUnknown, ""},
		"\r\n\r\n\x00\r\nQUIT\n":                                          {openingUnknown, ""},
		"SSH-2.0-x\x01\r\n":                                               {openingUnknown, ""},
		"SSH-2.0-" + strings.Repeat("x", 300) + "\r\n":                    {openingUnknown, ""},
		"SSH-2.0-x HTTP/1.1\r\n":                                          {openingUnnamed, ""},
		"*1\r\nGET / HTTP/1.1\r\nHost: x.test\r\n\r\n":                    {openingUnknown, ""},
		"002egit-upload-pack / HTTP/1.1\x00host=cdn.test\x00\r\n":         {openingUnknown, ""},
		"\x00\x00\x00\x2a\x00\x12\x00\x03":                                {openingUnknown, ""}, // Kafka
		"\x00\x2e\x00\x01\x00\x02":                                        {openingUnknown, ""}, // SSLv2, with padding
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
		"get key\r\n":                                                     {openingUnknown, ""},
		// Clearly another protocol.
		"SSH-2.0-OpenSSH_9.9\r\n":    {openingOther, ""},
		"SSH-2.0-x":                  {openingPartial, ""},
		"@RSYNCD: 31.0 sha512 md5\n": {openingOther, ""},
		"*1\r\n$4\r\nPING\r\n":       {openingOther, ""},
		"*12\r":                      {openingPartial, ""},
		"0027git-upload-pack /a.git\x00host=a.test\x00":                  {openingOther, ""},
		"0032git-upload-pack /a.git\x00host=a.test\x00\x00version=2":     {openingPartial, ""},
		"0032git-upload-pack /a.git\x00host=a.test\x00\x00version=2\x00": {openingOther, ""},
		"\x00\x00\x00\x08\x04\xd2\x16\x2f":                               {openingPrelude, ""}, // PostgreSQL asks for TLS
		"\x00\x00\x00\x08\x04\xd2\x16\x30":                               {openingPrelude, ""},
		"\x00\x00\x00\x14\x00\x03\x00\x00user\x00alice\x00\x00":          {openingOther, ""},
		"\x00\x00\x00\x29\x00\x03\x00\x00user\x00":                       {openingPartial, ""},
		"\x00\x00\x00\x29": {openingPartial, ""},
		"\x00\x00\x00\x2b\x00\x03\x00\x00GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n": {openingUnknown, ""},
		"\x00\x00\x27\x11\x00\x03\x00\x00user\x00":                                  {openingUnknown, ""}, // longer than a server accepts
		"GET / HTTP/1.1\r\nA: " + strings.Repeat("a", maxOpening):                   {openingUnnamed, ""},
		strings.Repeat(
			"a", maxOpening): {openingUnnamed, ""},
	} {
		if what, said, _ := readOpening([]byte(text)); what != want.what || said != want.said {
			t.Errorf("%.60q: got %v %q, want %v %q", text, what, said, want.what, want.said)
		}
	}
}

// nameByTLS returns the name that crypto/tls finds in b. ok reports whether it accepts b as a
// ClientHello.
func nameByTLS(b []byte) (name string, ok bool) {
	config := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = h.ServerName, true
		return nil, errors.New("no server is here")
	}}
	_ = tls.Server(replay{in: bytes.NewReader(b)}, config).Handshake()
	return name, ok
}

// replay is a connection with data that was read before.
type replay struct {
	net.Conn // nil: a handshake that ends at its first message only reads and writes
	in       io.Reader
}

func (r replay) Read(b []byte) (int, error) { return r.in.Read(b) }

func (r replay) Write(b []byte) (int, error) { return len(b), nil }

// A decision stays, whatever follows, and at most maxOpening bytes are needed. If there is a name,
// a TLS server finds the same one.
func FuzzOpening(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: cdn.test\r\n\r\n"), []byte("x"))
	f.Add(hello(f, "cdn.test"), []byte{0})
	f.Add(split(hello(f, "cdn.test"), 9), []byte{22})
	f.Add([]byte{22, 3, 1}, []byte{0, 1})
	f.Add(append([]byte{21, 3, 1, 0, 2, 1, 112}, hello(f, "cdn.test")...), []byte{0})
	f.Add(sslv2, []byte{0})
	for _, first := range []string{"GET /", "GET /\x01 HTTP/1.1\r",
		"\r\n\r\nget / HTTP/1.1\r\nHost: cdn.test\r\n\r", "PRI * HTTP/2.0\r\n\r\n",
		"GET http://x.test/ HTTP/1.1\r\nHost: cdn.test\r\n\r\n", "SSH-2.0-x", "*1\r\n$",
		"0027git-upload-pack /a.git\x00host=a.test\x00",
		"\x00\x00\x00\x08\x04\xd2\x16\x2f", "@RSYNCD: 31.0\n", "GET / HTTP/1.1\r\nA: b\r\r\n\r"} {
		f.Add([]byte(first), []byte("\n\r\n"))
	}
	f.Fuzz(func(t *testing.T, b, more []byte) {
		what, said, size := readOpening(b)
		if (what == openingNamed) != (said != "") || size < 0 || size > len(b) || size > 0 &&
			what != openingNamed && what != openingPrelude {
			t.Fatalf("%v with %q and %d", what, said, size)
		}
		if what == openingNamed && b[0] == recordHandshake {
			if got, ok := nameByTLS(b); ok && !strings.EqualFold(got, said) {
				t.Fatalf("crypto/tls reads %q, and we %q", got, said)
			}
		}
		if what == openingPartial {
			if len(b) >= maxOpening {
				t.Fatalf("%d bytes, and undecided", len(b))
			}
			return
		}
		if again, name, n := readOpening(append(bytes.Clone(b), more...)); again != what ||
			name != said || n != size {
			t.Fatalf("%v %q %d became %v %q %d", what, said, size, again, name, n)
		}
	})
}
