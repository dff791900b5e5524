package gossip

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
)

// captured holds messages that real nodes sent to each other, without labels and checksums.
type captured struct {
	packets [][]byte
	streams [][]byte // sent by the dialling node
	answers [][]byte // received by the dialling node
}

// capture makes nodes meet, gossip, fail and leave, and returns one message of
// each kind and length.
var capture = sync.OnceValues(func() (captured, error) {
	r := &recorder{seen: make(map[string]bool)}
	network := memnet.New()
	var nodes []*Gossip
	defer func() {
		for _, g := range nodes {
			g.Close()
		}
	}()
	words := &board{words: map[string]int{"news": 100}}
	for i := 101; i <= 104; i++ {
		ip := fmt.Sprintf("127.77.0.%d", i)
		inner, err := network.Host(ip).GossipTransport(testPort)
		if err != nil {
			return captured{}, err
		}
		g, err := Open(Config{
			Self: Member{ID: id(i), Name: fmt.Sprintf("n%d", i), Zone: "z", PeerPort: 7947},
			Port: testPort, Advertise: ip,
			Join: []string{"127.77.0.101"}, Transport: &recording{inner, r}, News: words, Logger: slog.New(&journal{}),
			ProbeInterval: 40 * time.Millisecond, ProbeTimeout: 20 * time.Millisecond,
			GossipInterval: 10 * time.Millisecond,
			SyncInterval:   100 * time.Millisecond, RejoinInterval: 50 * time.Millisecond,
		})
		if err != nil {
			return captured{}, err
		}
		nodes = append(nodes, g)
	}
	wait := func(kinds ...byte) error {
		for deadline := time.Now().Add(15 * time.Second); !r.has(kinds); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				return fmt.Errorf("no message of each of the kinds %d", kinds)
			}
		}
		return nil
	}
	if err := wait(pingMsg, ackMsg, aliveMsg, compoundMsg, userMsg, pushPullMsg); err != nil {
		return captured{}, err
	}
	// On a machine that stands still, a crash may be found without one of these;
	// then another node crashes.
	var err error
	for crashed := 3; crashed == 3 || crashed == 2 && err != nil; crashed-- {
		network.Crash(fmt.Sprintf("127.77.0.%d", 101+crashed))
		nodes[crashed].Close()
		err = wait(indirectPingMsg, nackMsg, suspectMsg, deadMsg)
	}
	if err != nil {
		return captured{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Nodes send these two only if packets were lost, or if they differ from each other.
	r.found.streams = append(r.found.streams, slices.Concat([]byte{pingMsg}, pack("SeqNo", 7, "Node", "")))
	r.found.answers = append(r.found.answers, slices.Concat([]byte{ackMsg}, pack("SeqNo", 7, "Payload", nil)),
		slices.Concat([]byte{errorMsg}, pack("Error", "no")))
	return r.found, nil
})

func seeds(t testing.TB) captured {
	t.Helper()
	c, err := capture()
	expect.NoError(t, err)
	return c
}

type recorder struct {
	mu    sync.Mutex
	found captured        // guarded by mu
	seen  map[string]bool // guarded by mu
	kinds [16]bool        // guarded by mu
}

func (r *recorder) has(kinds []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(kinds, func(k byte) bool { return !r.kinds[k] })
}

// note keeps a message if it is the first of its kind and length.
func (r *recorder) note(to *[][]byte, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(b) > crcHeader && b[0] == crcMsg {
		b = b[crcHeader:]
	}
	r.kinds[b[0]] = true
	if b[0] == compoundMsg { // suspicions travel with pings, and news with anything
		for parts := b[2+2*int(b[1]):]; len(parts) > 0; parts = parts[1:] {
			if parts[0] <= userMsg && len(parts) > 1 && (parts[0] == userMsg || parts[1]&0xf0 == 0x80) {
				r.kinds[parts[0]] = true
			}
		}
	}
	if key := fmt.Sprint(b[0], len(b)/16); !r.seen[key] {
		r.seen[key] = true
		*to = append(*to, slices.Clone(b))
	}
}

// recording is a transport that records what it sends.
type recording struct {
	memberlist.Transport
	r *recorder
}

func (rec *recording) WriteTo(b []byte, address string) (time.Time, error) {
	rec.r.note(&rec.r.found.packets, b[2+len(label):])
	return rec.Transport.WriteTo(b, address)
}

func (rec *recording) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	c, err := rec.Transport.DialTimeout(address, timeout)
	if err != nil {
		return nil, err
	}
	return &recordedStream{Conn: c, r: rec.r}, nil
}

type recordedStream struct {
	net.Conn
	r    *recorder
	read []byte
}

func (rs *recordedStream) Write(b []byte) (int, error) {
	if b[0] != labelMsg {
		rs.r.note(&rs.r.found.streams, b)
	}
	return rs.Conn.Write(b)
}

func (rs *recordedStream) Read(b []byte) (int, error) {
	n, err := rs.Conn.Read(b)
	rs.read = append(rs.read, b[:n]...)
	return n, err
}

func (rs *recordedStream) Close() error {
	if len(rs.read) > 0 {
		rs.r.note(&rs.r.found.answers, rs.read)
		rs.read = nil
	}
	return rs.Conn.Close()
}

// The capture has every kind of message that nodes send to each other. The inspector accepts each.
func TestWhatNodesSendIsPassedOn(t *testing.T) {
	t.Parallel()
	c := seeds(t)
	in := &inspector{label: label, isMemberAddress: func(netip.AddrPort) bool { return true }}
	for _, b := range c.packets {
		if _, err := in.inspectPacket(append(in.labelHeader(), b...), &net.UDPAddr{}); err != nil {
			t.Errorf("packet %x: %v", b, err)
		}
	}
	room := func(int) error { return nil }
	for dir, all := range map[direction][][]byte{accepted: c.streams, dialed: c.answers} {
		for _, b := range all {
			whole := b
			if dir == accepted {
				whole = append(in.labelHeader(), b...)
			}
			if have, err := in.inspectStream(bytes.NewReader(whole), dir, room); err != nil || !bytes.Equal(have, b) {
				t.Errorf("stream %x: have %x, %v", b, have, err)
			}
		}
	}
	t.Logf("%d packets, %d streams, %d answers", len(c.packets), len(c.streams), len(c.answers))
}
