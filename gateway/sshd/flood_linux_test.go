package sshd

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// fullNumbers reports whether attacks run with the numbers that the security page promises, with
// limits on time and memory. `make -C scripts interop` sets it, on an otherwise idle machine.
func fullNumbers() bool { return os.Getenv("SANDBOXD_INTEROP_FULL") != "" }

// plainPacket returns a packet before encryption (RFC 4253, section 6).
func plainPacket(payload []byte) []byte {
	padding := 8 - (5+len(payload))%8
	if padding < 4 {
		padding += 8
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	b = append(append(b, byte(padding)), payload...)
	return append(b, make([]byte, padding)...)
}

// kexInit returns the first packet of a client with strict key exchange (OpenSSH, PROTOCOL, section
// 1.10).
func kexInit() []byte {
	type message struct {
		Cookie                                         [16]byte `sshtype:"20"`
		Kex, HostKeys, CipherC, CipherS, MACC, MACS    []string
		CompressionC, CompressionS, LanguageC, Languag []string
		Follows                                        bool
		Reserved                                       uint32
	}
	none, cipher, mac := []string{"none"}, []string{"aes128-ctr"}, []string{"hmac-sha2-256"}
	return ssh.Marshal(&message{Kex: []string{"curve25519-sha256", "kex-strict-c-v00@openssh.com"},
		HostKeys: []string{ssh.KeyAlgoED25519},
		CipherC:  cipher, CipherS: cipher, MACC: mac, MACS: mac, CompressionC: none,
		CompressionS: none})
}

// With strict key exchange, only key exchange messages may come before the keys. Even ignorable
// ones would shift later sequence numbers (Terrapin, CVE-2023-48795).
func TestStrictKex(t *testing.T) {
	// So that no client is disconnected for being slow.
	w := newWorld(t, worldOptions{limits: Limits{Grace: time.Hour}})
	const version = "SSH-2.0-x\r\n"
	for name, message := range map[string][]byte{
		"IGNORE": append([]byte{2}, ssh.Marshal(struct{ Data string }{"x"})...),
		"DEBUG": append([]byte{4}, ssh.Marshal(struct {
			Show           bool
			Text, Language string
		}{true, "x", ""})...),
		"UNIMPLEMENTED": append([]byte{3}, 0, 0, 0, 0),
	} {
		t.Run(name+" before KEXINIT", func(t *testing.T) {
			garbage(t, w.addr, append(append([]byte(version), plainPacket(message)...),
				plainPacket(kexInit())...))
		})
		t.Run(name+" after KEXINIT", func(t *testing.T) {
			garbage(t, w.addr, append(append([]byte(version), plainPacket(kexInit())...),
				plainPacket(message)...))
		})
	}
	// Without these messages the gateway waits for more, so they ended the connection: its own
	// first packet is answered.
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	// An ephemeral X25519 key that is the base point: only a connected client gets the answer, 31.
	point := make([]byte, 32)
	point[0] = 9
	init := append([]byte{30}, ssh.Marshal(struct{ Point []byte }{point})...)
	if _, err := c.Write(append(append([]byte(version), plainPacket(kexInit())...),
		plainPacket(init)...)); err != nil {
		t.Fatal(err)
	}
	if got := answers(t, c); !bytes.Equal(got, []byte{20, 31, 21}) {
		t.Errorf("answers with messages %v, want KEXINIT, KEX_ECDH_REPLY, NEWKEYS", got)
	}
}

// answers reads a server's version line and its packets up to NEWKEYS, and returns their types.
func answers(t *testing.T, r io.Reader) []byte {
	t.Helper()
	one := make([]byte, 1)
	for one[0] != '\n' {
		if _, err := io.ReadFull(r, one); err != nil {
			t.Fatal(err)
		}
	}
	var types []byte
	for len(types) == 0 || types[len(types)-1] != 21 {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			t.Fatalf("after %v: %v", types, err)
		}
		packet := make([]byte, binary.BigEndian.Uint32(head[:])&0xffff)
		if _, err := io.ReadFull(r, packet); err != nil || len(packet) < 2 {
			t.Fatalf("after %v: %v", types, err)
		}
		types = append(types, packet[1])
	}
	return types
}

// Thousands of connections that never log in, from a thousand addresses, do not affect logged-in
// clients, and allow valid logins.
func TestHalfOpenFlood(t *testing.T) {
	const sources = 1000
	n := 1000
	if fullNumbers() {
		n = 10_000
	}
	for name, source := range map[string]func(i int) net.IP{
		"one source":   func(int) net.IP { return net.IPv4(127, 7, 7, 7) },
		"many sources": func(i int) net.IP { return net.IPv4(127, 8, byte(i%sources>>8), byte(i%sources)) },
	} {
		t.Run(name, func(t *testing.T) {
			// No source is exempt.
			w := newWorld(t, worldOptions{limits: Limits{PerSource: 8, Grace: time.Hour}})
			w.sandbox("demo")
			inside := w.dial("alice", "demo")
			echo, replies := openSession(t, inside)
			go ssh.DiscardRequests(replies)
			execute(t, echo, "cat")
			roundTrip := func() time.Duration {
				began := time.Now()
				if _, err := echo.Write([]byte("still here\n")); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 11)
				if _, err := io.ReadFull(echo, got); err != nil || string(got) != "still here\n" {
					t.Fatalf("a session that was there: %q, %v", got, err)
				}
				return time.Since(began)
			}
			roundTrip()

			var worst time.Duration
			for i := range n {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: source(i)}, Timeout: time.Minute}
				c, err := d.Dial("tcp", w.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if i%100 == 0 {
					worst = max(worst, roundTrip())
				}
			}
			began, tries := time.Now(), 0
			eventually(t, "a login from elsewhere", func() bool {
				tries++
				c, err := w.tryDial("alice", "sandboxd")
				if err == nil {
					c.Close()
				}
				return err == nil
			})
			took := time.Since(began)
			worst = max(worst, roundTrip())
			resident := residentMemory(t)
			t.Logf(
				"%d connections: login after %v at the %d. try, echo at worst %v, %d MB resident",
				n, took, tries, worst, resident>>20)
			if fullNumbers() && (took > 2*time.Second || worst > time.Second ||
				resident > 300<<20) {
				t.Error("want 2 s, 1 s and 300 MB at most")
			}
			if g := runtime.NumGoroutine(); g > 1000 {
				t.Errorf("%d goroutines", g)
			}
		})
	}
}

// residentMemory returns the memory of this process, including the attackers' half.
func residentMemory(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// A client that exchanges keys repeatedly costs time, its own too, and no memory. Its data arrives.
func TestRekeyFlood(t *testing.T) {
	n := 200
	if fullNumbers() {
		n = 10_000
	}
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	raw, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	counted := &gagged{Conn: raw}
	// The library's minimum: new keys every 256 bytes.
	sc, chans, reqs, err := ssh.NewClientConn(counted, w.addr,
		&ssh.ClientConfig{Config: ssh.Config{RekeyThreshold: 256}, User: "demo",
			Auth:            []ssh.AuthMethod{ssh.PublicKeys(w.signer("alice"))},
			HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey())})
	if err != nil {
		t.Fatal(err)
	}
	c := ssh.NewClient(sc, chans, reqs)
	defer c.Close()
	before, sent := heap(), counted.written.Load()
	ch, replies := openSession(t, c)
	go ssh.DiscardRequests(replies)
	execute(t, ch, "cat")
	data := bytes.Repeat([]byte("0123456789abcdef"), 512/16)
	for i := range n {
		if _, err := ch.Write(data); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		got := make([]byte, len(data))
		if _, err := io.ReadFull(ch, got); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("round %d: %q, %v", i, got, err)
		}
		// At least 500 bytes in each direction. The library exchanges keys beside writes: without a
		// wait, a round would share the exchange of the previous one.
		eventually(t, "an exchange of keys in each round",
			func() bool { return counted.written.Load()-sent >= int64((i+1)*(len(data)+500)) })
	}
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	if got := whoami(t, w.dial("alice", "sandboxd")); got != "alice" {
		t.Errorf("another connection: %q", got)
	}
}

func heap() int64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// A client that starts a key exchange and does not continue, while a command floods it, uses little
// memory and is disconnected. So is one that keeps sending bytes of an endless packet.
func TestRekeyNeverEnds(t *testing.T) {
	t.Parallel()
	for name, drip := range map[string]bool{"silent": false, "dripping": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{limits: Limits{Keepalive: time.Second, KeepaliveMax: 3}})
			w.sandbox("demo")
			raw, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			gag := &gagged{Conn: raw}
			sc, chans, reqs, err := ssh.NewClientConn(
				gag, w.addr, &ssh.ClientConfig{User: "demo",
					Auth: []ssh.AuthMethod{ssh.PublicKeys(w.signer("alice"))},
					Config: ssh.Config{Ciphers: []string{"aes128-gcm@openssh.com"},
						RekeyThreshold: 64 << 10},
					HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey())})
			if err != nil {
				t.Fatal(err)
			}
			c := ssh.NewClient(sc, chans, reqs)
			defer c.Close()
			s, err := c.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			out, err := s.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			before := heap()
			// After 64 KiB the client's library starts a key exchange; its later writes are
			// withheld from the gateway.
			gag.after.Store(gag.written.Load() + 4<<10)
			if err := s.Start("yes"); err != nil {
				t.Fatal(err)
			}
			var feeding sync.WaitGroup
			feeding.Go(func() { _, _ = io.Copy(io.Discard, out) }) // until the connection ends
			eventually(t, "the client is gagged", func() bool { return gag.gagged.Load() })
			ended := make(chan error, 1)
			go func() { ended <- c.Wait() }()
			if drip {
				feeding.Go(func() { dripPacket(raw) })
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("is not sent away")
			}
			if grown := heap() - before; grown > 64<<20 {
				t.Errorf("%d MiB more are in use", grown>>20)
			}
			raw.Close()
			feeding.Wait()
			eventually(t, "the gateway has noticed",
				func() bool { return w.log.contains("client is gone") })
		})
	}
}

// dripPacket sends a packet of 256 KiB byte by byte until the connection ends. Its length is not
// encrypted (RFC 5647).
func dripPacket(c net.Conn) {
	if _, err := c.Write([]byte{0, 3, 0xff, 0xf0}); err != nil {
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := c.Write([]byte{0}); err != nil {
			return
		}
	}
}

// gagged is a client's connection that passes only its first bytes to the other side.
type gagged struct {
	net.Conn
	written atomic.Int64
	after   atomic.Int64 // 0: nothing is withheld
	gagged  atomic.Bool
}

func (g *gagged) Write(p []byte) (int, error) {
	limit := g.after.Load()
	if limit == 0 {
		limit = math.MaxInt64
	}
	if g.gagged.Load() || g.written.Load() > limit {
		g.gagged.Store(true) // between packets: the library writes each at once
		return len(p), nil
	}
	n, err := g.Conn.Write(p)
	g.written.Add(int64(n))
	return n, err
}

// A signature of a FIDO key without touch is denied, unless the key's line allows it.
func TestSecurityKeys(t *testing.T) {
	key, free := newSecurityKey(t), newSecurityKey(t)
	w := newWorld(t, worldOptions{keys: []string{
		keyLine(`principal="alice"`, key.PublicKey()),
		keyLine(`principal="alice",no-touch-required`, free.PublicKey())}})
	for _, tt := range []struct {
		name  string
		key   *securityKey
		flags byte
		in    bool
	}{
		{"touched", key, 1, true},
		{"touched and verified", key, 5, true},
		{"not touched", key, 0, false},
		{"verified, not touched", key, 4, false},
		{"not touched, not required", free, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := *tt.key
			k.flags = tt.flags
			c, err := ssh.Dial("tcp", w.addr,
				&ssh.ClientConfig{User: wire.ControlHost, Auth: []ssh.AuthMethod{ssh.PublicKeys(&k)},
					HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey()), Timeout: time.Minute})
			if err == nil {
				defer c.Close()
			}
			if in := err == nil; in != tt.in {
				t.Fatalf("let in: %v (%v), want %v", in, err, tt.in)
			}
			if err == nil && whoami(t, c) != "alice" {
				t.Error("is not alice")
			}
		})
	}
}
