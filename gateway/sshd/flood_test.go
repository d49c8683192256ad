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

	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// fullNumbers reports whether attacks are made with the numbers that the security page promises, and times and memory are
// held to it: `make -C scripts interop` asks for it, on a machine that does nothing else.
func fullNumbers() bool { return os.Getenv("SANDBOXD_INTEROP_FULL") != "" }

// plainPacket is a packet as it is before there are keys (RFC 4253, section 6).
func plainPacket(payload []byte) []byte {
	padding := 8 - (5+len(payload))%8
	if padding < 4 {
		padding += 8
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	b = append(append(b, byte(padding)), payload...)
	return append(b, make([]byte, padding)...)
}

// kexInit is the first packet of a client with strict key exchange (OpenSSH, PROTOCOL, section 1.10).
func kexInit() []byte {
	type message struct {
		Cookie                                         [16]byte `sshtype:"20"`
		Kex, HostKeys, CipherC, CipherS, MACC, MACS    []string
		CompressionC, CompressionS, LanguageC, Languag []string
		Follows                                        bool
		Reserved                                       uint32
	}
	none, cipher, mac := []string{"none"}, []string{"aes128-ctr"}, []string{"hmac-sha2-256"}
	return ssh.Marshal(&message{Kex: []string{"curve25519-sha256", "kex-strict-c-v00@openssh.com"}, HostKeys: []string{ssh.KeyAlgoED25519},
		CipherC: cipher, CipherS: cipher, MACC: mac, MACS: mac, CompressionC: none, CompressionS: none})
}

// With strict key exchange nothing but the key exchange may come before the keys: not even what may be ignored, for it
// would shift the sequence numbers of what follows (Terrapin, CVE-2023-48795).
func TestStrictKex(t *testing.T) {
	w := newWorld(t, worldOptions{limits: Limits{Grace: time.Hour}}) // whoever is sent away is not for being slow
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
			garbage(t, w.addr, append(append([]byte(version), plainPacket(message)...), plainPacket(kexInit())...))
		})
		t.Run(name+" after KEXINIT", func(t *testing.T) {
			garbage(t, w.addr, append(append([]byte(version), plainPacket(kexInit())...), plainPacket(message)...))
		})
	}
	// Without the messages the gateway waits for the rest, so it is they that ended it: its own first packet is answered.
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	// An ephemeral key of X25519 that is the base point: the answer, 31, comes only to who was not sent away.
	point := make([]byte, 32)
	point[0] = 9
	init := append([]byte{30}, ssh.Marshal(struct{ Point []byte }{point})...)
	if _, err := c.Write(append(append([]byte(version), plainPacket(kexInit())...), plainPacket(init)...)); err != nil {
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

// Connections that never log in, by the thousand and from a thousand places, leave who is inside alone and let in who
// knows a key.
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
			w := newWorld(t, worldOptions{limits: Limits{PerSource: 8, Grace: time.Hour}}) // no source is exempt
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
			t.Logf("%d connections: login after %v at the %d. try, echo at worst %v, %d MB resident", n, took, tries, worst, resident>>20)
			if fullNumbers() && (took > 2*time.Second || worst > time.Second || resident > 300<<20) {
				t.Error("want 2 s, 1 s and 300 MB at most")
			}
			if g := runtime.NumGoroutine(); g > 1000 {
				t.Errorf("%d goroutines", g)
			}
		})
	}
}

// residentMemory is that of this process, the attackers' half included.
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

// A client that exchanges keys over and over costs time, of its own too, and no memory; what it sends arrives.
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
	// The least that the library takes: keys anew every 256 bytes.
	sc, chans, reqs, err := ssh.NewClientConn(counted, w.addr, &ssh.ClientConfig{Config: ssh.Config{RekeyThreshold: 256}, User: "demo",
		Auth: []ssh.AuthMethod{ssh.PublicKeys(w.signer("alice"))}, HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey())})
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
		// It is at least 500 bytes each way. The library makes it beside what it writes: a round that did not wait would go with the one before.
		eventually(t, "an exchange of keys in each round", func() bool { return counted.written.Load()-sent >= int64((i+1)*(len(data)+500)) })
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

// A client that begins to exchange keys and never goes on, while a command floods it: little is kept for it, and it is
// sent away – also when it goes on sending bytes, of a packet that never ends.
func TestRekeyNeverEnds(t *testing.T) {
	for name, drip := range map[string]bool{"silent": false, "dripping": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{limits: Limits{Keepalive: time.Second, KeepaliveMax: 3}})
			w.sandbox("demo")
			raw, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			gag := &gagged{Conn: raw}
			sc, chans, reqs, err := ssh.NewClientConn(gag, w.addr, &ssh.ClientConfig{User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(w.signer("alice"))},
				Config:          ssh.Config{Ciphers: []string{"aes128-gcm@openssh.com"}, RekeyThreshold: 64 << 10},
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
			// When 64 KiB have come the client's library begins; what it writes after that is kept from the gateway.
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
			eventually(t, "the gateway has noticed", func() bool { return w.log.contains("client is gone") })
		})
	}
}

// dripPacket sends a packet of 256 KiB a byte at a time, until the connection ends. Its length is not encrypted (RFC 5647).
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

// gagged is a client's connection of which the other side hears only the first bytes.
type gagged struct {
	net.Conn
	written atomic.Int64
	after   atomic.Int64 // 0 while nothing is kept back
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

// A signature of a FIDO key that was made without touching it is refused, unless the key's line allows that.
func TestSecurityKeys(t *testing.T) {
	key, free := newSecurityKey(t), newSecurityKey(t)
	w := newWorld(t, worldOptions{keys: []string{
		keyLine(`principal="alice"`, key.PublicKey()), keyLine(`principal="alice",no-touch-required`, free.PublicKey())}})
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
			c, err := ssh.Dial("tcp", w.addr, &ssh.ClientConfig{User: wire.Lobby, Auth: []ssh.AuthMethod{ssh.PublicKeys(&k)},
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
