package gossip

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// target is a real node on loopback, and a socket that sends it messages that no node sends.
type target struct {
	*Gossip
	t      testing.TB
	socket *net.UDPConn
	key    []byte // the node's key; nil: no encryption
	asked  uint32 // sequence number of the last ping
}

var secret = bytes.Repeat([]byte{7}, 32)

// openTarget opens node 1.
func openTarget(t testing.TB, key []byte, options ...func(*Config)) *target {
	t.Helper()
	c := loopback(1, key)
	for _, o := range options {
		o(&c)
	}
	g, err := Open(c)
	expect.NoError(t, err)
	t.Cleanup(func() { g.Close() })
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(g.self.gossipAddress()))
	expect.NoError(t, err)
	t.Cleanup(func() { socket.Close() })
	return &target{Gossip: g, t: t, socket: socket, key: key, asked: 1 << 24}
}

// loopback returns a configuration of node i with short times.
func loopback(i int, key []byte) Config {
	return Config{
		Self: Member{ID: id(i), Name: fmt.Sprintf("n%d", i)}, BindAddr: "127.0.0.1", Keyring: ringOf(key),
		Logger:        slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})),
		ProbeInterval: 100 * time.Millisecond, ProbeTimeout: 50 * time.Millisecond,
		GossipInterval: 20 * time.Millisecond,
		RejoinInterval: 100 * time.Millisecond, StreamTimeout: 2 * time.Second,
	}
}

func (tg *target) packet(b []byte) {
	tg.t.Helper()
	if _, err := tg.socket.Write(b); err != nil {
		tg.t.Fatal(err)
	}
}

// stream sends b on a new connection and returns the answer until the node closes it.
func (tg *target) stream(b []byte) []byte {
	answer, err := streamFrom("127.0.0.1", tg.self.gossipAddress().String(), b)
	if err != nil {
		tg.t.Error(err)
	}
	return answer
}

func streamFrom(ip, address string, b []byte) ([]byte, error) {
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	c, err := d.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = c.Write(b) // the node may have closed it by then
	_ = c.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(c)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		return nil, fmt.Errorf("the node keeps a stream open: %w", err)
	}
	return answer, nil
}

// awaitAnswer waits until the node answers a ping: it has then handled all earlier packets.
func (tg *target) awaitAnswer() {
	tg.t.Helper()
	tg.asked++
	ping := slices.Concat([]byte{pingMsg}, pack("SeqNo", tg.asked, "Node", ""))
	want := pack("SeqNo", tg.asked)[1:]
	buf := make([]byte, 65536)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		tg.packet(tg.framed(ping))
		for {
			tg.socket.SetReadDeadline(time.Now().Add(time.Second))
			n, err := tg.socket.Read(buf)
			if err != nil {
				break // ask again
			}
			b := buf[2+len(label) : n]
			if tg.key != nil {
				if b, err = (&inspector{keys: func() [][]byte { return [][]byte{tg.key} }}).decrypt(b, []byte(label)); err != nil {
					tg.t.Fatal(err)
				}
			}
			if bytes.Contains(b, want) {
				return
			}
		}
	}
	tg.t.Fatal("the node no longer answers")
}

// framed returns b as a packet from a sender that has the node's key.
func (tg *target) framed(b []byte) []byte {
	if tg.key != nil {
		b = seal(tg.key, cipherVersion, b, []byte(label))
	}
	return labeled(b)
}

// framedStream is framed for streams.
func (tg *target) framedStream(b []byte) []byte {
	if tg.key != nil {
		b = sealStream(tg.key, cipherVersion, b)
	}
	return labeled(b)
}

func labeled(b []byte) []byte {
	return slices.Concat([]byte{labelMsg, byte(len(label))}, []byte(label), b)
}

// seal encrypts as memberlist does, with any version byte.
func seal(key []byte, version byte, b, additional []byte) []byte {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	head := append([]byte{version}, make([]byte, nonceSize)...)
	return gcm.Seal(head, head[1:], b, additional)
}

func sealStream(key []byte, version byte, b []byte) []byte {
	head := binary.BigEndian.AppendUint32([]byte{encryptMsg}, uint32(1+nonceSize+len(b)+tagSize))
	return append(head, seal(key, version, b, append(slices.Clone(head), label...))...)
}

// pack encodes a map of alternating keys and values.
func pack(pairs ...any) []byte {
	b := []byte{0x80 | byte(len(pairs)/2)}
	for _, v := range pairs {
		switch v := v.(type) {
		case nil:
			b = append(b, 0xc0)
		case bool:
			b = append(b, 0xc2)
			if v {
				b[len(b)-1] = 0xc3
			}
		case uint32:
			b = binary.BigEndian.AppendUint32(append(b, 0xce), v)
		case int:
			if v >= 0 && v < 128 {
				b = append(b, byte(v))
			} else {
				b = binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
			}
		case string:
			b = packBytes(b, v)
		case []byte:
			b = packBytes(b, string(v))
		case raw:
			b = append(b, v...)
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	return b
}

type raw []byte // an encoded value

func packBytes(b []byte, s string) []byte {
	if len(s) < 32 {
		return append(append(b, 0xa0|byte(len(s))), s...)
	}
	return append(binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(len(s))), s...)
}

func compressed(b []byte) []byte {
	var out bytes.Buffer
	w := lzw.NewWriter(&out, lzw.LSB, 8)
	if _, err := w.Write(b); err != nil {
		panic(err)
	}
	w.Close()
	return slices.Concat([]byte{compressMsg}, pack("Algo", 0, "Buf", out.Bytes()))
}

func compound(parts ...[]byte) []byte {
	b := []byte{compoundMsg, byte(len(parts))}
	for _, p := range parts {
		b = binary.BigEndian.AppendUint16(b, uint16(len(p)))
	}
	return append(b, slices.Concat(parts...)...)
}

func summed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{crcMsg}, crc32.ChecksumIEEE(b)), b...)
}

func message(kind byte, pairs ...any) []byte { return append([]byte{kind}, pack(pairs...)...) }

// bomb is about 8 kB that unpack to 8 MB.
var bomb = sync.OnceValue(func() []byte { return compressed(make([]byte, 8<<20)) })

var ours = []byte{1, 5, 2, 0, 0, 0} // versions

func aliveBody(versions []byte, address []byte) []any {
	m, err := appendMetadata(nil, Member{Name: "n9"})
	if err != nil {
		panic(err)
	}
	return []any{"Incarnation", 1, "Node", id(9).String(), "Addr", address, "Port", 7, "Meta", m, "Vsn", versions}
}

func pushPullBody(join bool, versions ...[]byte) []byte {
	b := message(pushPullMsg, "Nodes", len(versions), "UserStateLen", 0, "Join", join)
	for _, v := range versions {
		fields := aliveBody(v, []byte{127, 0, 0, 9})
		fields[2] = "Name"
		b = append(b, pack(append(fields, "State", 0)...)...)
	}
	return b
}

// hostilePackets returns packet bodies that end a process, take far more memory
// than they have bytes, or are merely not sent by nodes.
func hostilePackets() map[string][]byte {
	tiny := compressed(nil)
	deep := compressed([]byte("x"))
	for range 60 {
		deep = compound(deep)
	}
	ping := []any{"SeqNo", 1, "Node", ""}
	return map[string][]byte{
		"compressed":                           tiny,
		"compressed, 8 kB":                     bomb(),
		"compressed, in one packet":            compressed(make([]byte, 256<<10)),
		"compressed in a compound":             compound(tiny, tiny),
		"compressed in a compound in another":  compound(compound(tiny, bomb())),
		"compressed in many compounds":         deep,
		"compressed behind a checksum":         summed(tiny),
		"compressed in a compound, a checksum": summed(compound(compound(tiny))),
		"a checksum in a compound":             compound(summed(tiny)),
		"a ping to answer to no address": message(pingMsg,
			append(ping, "SourceAddr", []byte{1, 2, 3}, "SourcePort", 7)...),
		"an indirect ping to no address": message(indirectPingMsg,
			append(ping, "Target", "", "Port", 7, "Nack", true)...),
		"alive at an address of three bytes": message(aliveMsg, aliveBody(ours, []byte{127, 0, 0})...),
		"alive without an address":           message(aliveMsg, aliveBody(ours, nil)...),
		"alive without versions":             message(aliveMsg, aliveBody(nil, []byte{127, 0, 0, 9})...),
		"alive with one version":             message(aliveMsg, aliveBody([]byte{1}, []byte{127, 0, 0, 9})...),
		"alive with versions that end exchange": message(aliveMsg,
			aliveBody([]byte{5, 5, 5, 0, 0, 0}, []byte{127, 0, 0, 9})...),
		"an array in place of a map": {ackMsg, 0x92, 1, 0xc0},
		"a field twice":              message(nackMsg, "SeqNo", 1, "SeqNo", 2),
		"nested arrays": append(message(nackMsg, "SeqNo", 1, "x",
			raw(bytes.Repeat([]byte{0x91}, 1000))), 1),
		"4 GB of bytes": message(ackMsg, "SeqNo", 1, "Payload",
			raw{0xc6, 0xff, 0xff, 0xff, 0xff}),
		"an array of 4 GB": message(ackMsg, "SeqNo", 1, "Payload",
			raw{0xdd, 0xff, 0xff, 0xff, 0xff}),
		"a user's message of a stream": {labelMsg, 1, 'x'},
		"nothing":                      {},
	}
}

// hostileStreams is hostilePackets for streams.
func hostileStreams() map[string][]byte {
	return map[string][]byte{
		"23 bytes":                        compressed(nil),
		"compressed":                      bomb(),
		"a user message of 4 EB":          message(userMsg, "UserMsgLen", 1<<62),
		"a user message of -1 bytes":      message(userMsg, "UserMsgLen", -1),
		"a user message of 1 TB":          message(userMsg, "UserMsgLen", 1<<40),
		"a million members":               message(pushPullMsg, "Nodes", 1<<20, "UserStateLen", 0, "Join", false),
		"-1 members":                      message(pushPullMsg, "Nodes", -1, "UserStateLen", 0, "Join", false),
		"as many members as there may be": message(pushPullMsg, "Nodes", maxStates, "UserStateLen", 0, "Join", false),
		"a state of 20 MB":                message(pushPullMsg, "Nodes", 0, "UserStateLen", 20<<20, "Join", true),
		"a state of 8 MB":                 message(pushPullMsg, "Nodes", 0, "UserStateLen", 8<<20, "Join", true),
		"a state of -1 bytes":             message(pushPullMsg, "Nodes", 0, "UserStateLen", -1, "Join", true),
		"a member with one version":       pushPullBody(false, []byte{1}),
		"one that joins without any":      pushPullBody(true, nil),
		"versions that end exchanges":     pushPullBody(false, []byte{5, 5, 5, 0, 0, 0}),
		"a ping with nested arrays": append(message(pingMsg, "SeqNo", 1, "x",
			raw(bytes.Repeat([]byte{0x91}, 1<<20))), 1),
		"a ping with 64 MB": message(pingMsg, "SeqNo", 1, "Node",
			raw(packBytes(nil, strings.Repeat("x", 64<<20)))),
		"an unasked answer": message(ackMsg, "SeqNo", 1, "Payload", nil),
	}
}

// A message that no node sends neither ends a node nor takes more memory than a
// packet's buffer, whether the node requires a key or not, and whether the
// sender has it or not.
func TestHostileMessages(t *testing.T) {
	for name, test := range map[string]struct {
		key    []byte
		frame  func(*target, []byte) []byte
		stream func(*target, []byte) []byte
	}{
		"no key":           {nil, (*target).framed, (*target).framedStream},
		"no key, no label": {nil, asIs, asIs},
		"a key, without it": {secret, func(_ *target, b []byte) []byte { return labeled(b) },
			func(_ *target, b []byte) []byte { return labeled(b) }},
		"a key, and no label":  {secret, asIs, asIs},
		"a key, by who has it": {secret, (*target).framed, (*target).framedStream},
		"a key, label in label": {secret,
			func(x *target, b []byte) []byte { return labeled(x.framed(b)) },
			func(x *target, b []byte) []byte { return labeled(x.framedStream(b)) }},
	} {
		t.Run(name, func(t *testing.T) {
			x := openTarget(t, test.key)
			x.awaitAnswer()
			for name, body := range hostilePackets() {
				if b := test.frame(x, body); len(b) > 0 {
					x.checkCost("packet: "+name, 2<<20, func() { x.packet(b); x.awaitAnswer() })
				}
			}
			for name, body := range hostileStreams() {
				b := test.stream(x, body)
				x.checkCost("stream: "+name, 4<<20+4*len(b), func() { x.stream(b); x.awaitAnswer() })
			}
			second := openTarget(t, test.key, func(c *Config) {
				c.Self.ID, c.Self.Name, c.Join = id(2), "n2", []string{x.self.gossipAddress().String()}
			})
			until(t, 20*time.Second, "another one joins", func() bool {
				return (&node{Gossip: second.Gossip}).summary() == "1 alive, 2 alive"
			})
		})
	}
}

func asIs(_ *target, b []byte) []byte { return b }

// checkCost checks that the node refuses a message, and allocates at most that many bytes.
func (tg *target) checkCost(what string, most int, do func()) {
	tg.t.(*testing.T).Run(what, func(t *testing.T) {
		var before, after runtime.MemStats
		refused := tg.Refused()
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(most) {
			t.Errorf("%d bytes were allocated, want at most %d", took, most)
		}
		if tg.Refused() == refused {
			t.Error("not refused")
		}
	})
}

// Messages that only a sender with the key can make.
func TestHostileCiphertext(t *testing.T) {
	x := openTarget(t, secret)
	x.awaitAnswer()
	padded := func(last byte) []byte { return append(make([]byte, 15), last) }
	for name, b := range map[string][]byte{
		"an empty text":           sealStream(secret, 1, nil),
		"padding beyond the text": sealStream(secret, 0, padded(255)),
		"padding alone":           sealStream(secret, 0, padded(16)),
		"of 4 GB":                 {encryptMsg, 0xff, 0xff, 0xff, 0xff},
		"of 20 MB":                {encryptMsg, 1, 0x40, 0, 0},
		"too short":               {encryptMsg, 0, 0, 0, 5, 1, 2, 3, 4, 5},
		"encrypted twice":         sealStream(secret, 1, sealStream(secret, 1, compressed(nil))),
	} {
		x.checkCost("stream: "+name, 2<<20, func() { x.stream(labeled(b)); x.awaitAnswer() })
	}
	for name, b := range map[string][]byte{
		"an empty text":           seal(secret, 1, nil, []byte(label)),
		"padding beyond the text": seal(secret, 0, padded(255), []byte(label)),
		"too short":               {1, 2, 3},
		"encrypted twice":         seal(secret, 1, seal(secret, 1, compressed(nil), []byte(label)), []byte(label)),
		"a later version":         seal(secret, 2, compressed(nil), []byte(label)),
	} {
		x.checkCost("packet: "+name, 2<<20, func() { x.packet(labeled(b)); x.awaitAnswer() })
	}
}

// With several keys, each one decrypts messages, and no other key does.
func TestEachKeyOpens(t *testing.T) {
	keys := [][]byte{bytes.Repeat([]byte{1}, 16), bytes.Repeat([]byte{2}, 32)}
	in := &inspector{label: label, keys: func() [][]byte { return keys }}
	room := func(int) error { return nil }
	nack := message(nackMsg, "SeqNo", 1)
	ping := message(pingMsg, "SeqNo", 1, "Node", "")
	for i, key := range [][]byte{keys[0], keys[1], bytes.Repeat([]byte{3}, 32)} {
		_, err := in.inspectPacket(labeled(seal(key, 1, nack, []byte(label))), &net.UDPAddr{})
		_, errStream := in.inspectStream(bytes.NewReader(labeled(sealStream(key, 1, ping))), accepted, room)
		if want := i < 2; (err == nil) != want || (errStream == nil) != want {
			t.Errorf("key %d: have %v and %v", i, err, errStream)
		}
	}
	keys = nil // an empty keyring does not accept plain messages
	if _, err := in.inspectPacket(labeled(nack), &net.UDPAddr{}); err == nil {
		t.Error("no keys: a plain packet is accepted")
	}
	if _, err := in.inspectStream(bytes.NewReader(labeled(ping)), accepted, room); err == nil {
		t.Error("no keys: a plain stream is accepted")
	}
}

// No message makes a node send anything to an address without a member.
func TestPingsReachNoStrangers(t *testing.T) {
	x := openTarget(t, nil)
	other, err := net.ListenPacket("udp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer other.Close()
	port := other.LocalAddr().(*net.UDPAddr).Port
	loop := []byte{127, 0, 0, 1}
	x.packet(labeled(message(pingMsg, "SeqNo", 1, "Node", "", "SourceAddr", loop, "SourcePort",
		port, "SourceNode", "")))
	x.packet(labeled(message(indirectPingMsg, "SeqNo", 1, "Node", "", "Target", loop, "Port", port, "Nack", true)))
	x.awaitAnswer()
	other.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // anything that was sent has arrived by now
	if n, from, err := other.ReadFrom(make([]byte, 2000)); err == nil {
		t.Errorf("have %d bytes from %v, want none", n, from)
	}
	expect.Equal(t, x.Refused(), 2, "messages refused")
}

// All streams together take a bounded amount of memory, and leave room for short messages.
func TestStreamsShareRoom(t *testing.T) {
	for name, key := range map[string][]byte{"no key": nil, "a key": secret} {
		t.Run(name, func(t *testing.T) {
			x := openTarget(t, key, func(c *Config) { c.StreamTimeout = time.Minute })
			b := message(pushPullMsg, "Nodes", 0, "UserStateLen", maxStream-100, "Join", true)
			if key != nil {
				b = binary.BigEndian.AppendUint32([]byte{encryptMsg}, maxStream)
			}
			b = append(labeled(b), make([]byte, maxStream/2)...)
			var open []net.Conn
			defer func() {
				for _, c := range open {
					c.Close()
				}
			}()
			for range 30 {
				c, err := net.Dial("tcp", x.self.gossipAddress().String())
				expect.NoError(t, err)
				open = append(open, c)
				c.SetDeadline(time.Now().Add(20 * time.Second))
				_, _ = c.Write(b) // half of a message; the node may have closed it by then
			}
			until(t, 20*time.Second, "some are refused", func() bool { return x.Refused() > 15 })
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if m.HeapAlloc > sharedRoom+32<<20 {
				t.Errorf("the heap has %d MB", m.HeapAlloc>>20)
			}
			ping := x.framedStream(message(pingMsg, "SeqNo", 1, "Node", ""))
			if answer := x.stream(ping); len(answer) == 0 {
				t.Error("a ping has no answer")
			}
		})
	}
}

// A bounded number of lists is read and answered at once. Further ones get their turn later.
func TestListsWaitForTheirTurn(t *testing.T) {
	var asked atomic.Int32
	release := make(chan struct{})
	x := openTarget(t, nil, func(c *Config) { c.News = stuck{&asked, release}; c.StreamTimeout = time.Minute })
	list := labeled(pushPullBody(false))
	done := make(chan []byte)
	for range maxSyncs + 4 {
		go func() { done <- x.stream(list) }()
	}
	until(t, 20*time.Second, "as many as may are answered", func() bool { return asked.Load() == maxSyncs })
	x.awaitAnswer()
	expect.Equal(t, asked.Load(), maxSyncs, "at once")
	close(release)
	for range maxSyncs + 4 {
		if answer := <-done; len(answer) == 0 {
			t.Error("no answer")
		}
	}
}

// stuck is News whose Whole blocks until release.
type stuck struct {
	asked   *atomic.Int32
	release chan struct{}
}

func (stuck) Packets(int, int) [][]byte { return nil }
func (stuck) Receive([]byte) error      { return nil }
func (s stuck) FullState() []byte {
	s.asked.Add(1)
	<-s.release
	return nil
}
