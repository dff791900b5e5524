package api

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// Every seat is free again once its connection leaves.
func TestSlotsComeBack(t *testing.T) {
	t.Parallel()
	p := newSeats(128)
	var all []*Connection
	for i := range 200 {
		c := &Connection{address: addressOf(&net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(i%3))})}
		if !p.take(c) {
			p.takeSpare(c)
		}
		if i%2 == 0 {
			p.trust(c)
		}
		all = append(all, c)
	}
	if p.taken != p.capacity || len(p.spareHolders) != p.spares || p.capacity+p.spares != 128 {
		t.Errorf("got %d and %d taken of %d and %d", p.taken, len(p.spareHolders), p.capacity, p.spares)
	}
	for _, c := range all {
		p.release(c)
		p.release(c)
	}
	if p.taken != 0 || len(p.spareHolders) != 0 || len(p.strangers) != 0 || len(p.trustedOf) != 0 {
		t.Errorf("got %d, %d, %v, %v", p.taken, len(p.spareHolders), p.strangers, p.trustedOf)
	}
}

func TestAddressOf(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"2001:db8::1": "2001:db8::/64", "::ffff:192.0.2.1": "192.0.2.1/32", "fe80::1": "fe80::/64",
		"64:ff9b::192.0.2.1": "192.0.2.1/32",
	} {
		got := addressOf(&net.TCPAddr{IP: net.ParseIP(in), Zone: "x"}).String()
		expect.Equal(t, got, want, "%s", in)
	}
}

// fakeConn is an end of a connection from address, which records that it was closed.
type fakeConn struct {
	net.Conn
	address string
	closed  bool
}

func (f *fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.address)} }
func (f *fakeConn) Close() error         { f.closed = true; return nil }

// crowd is a door whose connections come one second after another.
type crowd struct {
	conns *Connections
	now   time.Time
	names []string
	all   map[string]*Connection
}

func newCrowd(most int, tokens bool) *crowd {
	conns := NewConnections(ConnectionsConfig{Max: most, NeedTokens: func() bool { return tokens }})
	return &crowd{conns: conns, now: conns.began, all: make(map[string]*Connection)}
}

// join opens a connection, and returns the names of those that were closed for it.
func (c *crowd) join(name, address string) string {
	before := c.closed()
	c.now = c.now.Add(time.Second)
	conn := c.conns.add(&fakeConn{address: address})
	conn.BeginWait(c.now)
	c.names = append(c.names, name)
	c.all[name] = conn

	gone := slices.DeleteFunc(c.closed(), func(one string) bool { return slices.Contains(before, one) })
	return strings.Join(gone, " ")
}

func (c *crowd) closed() (names []string) {
	for _, name := range c.names {
		if c.all[name].Conn.(*fakeConn).closed {
			names = append(names, name)
		}
	}
	return names
}

// A newcomer displaces the stranger that has waited the longest, and nobody else.
func TestNewcomersDisplaceStrangers(t *testing.T) {
	t.Parallel()
	door := newCrowd(5, true) // one of them is for probes
	for i := range 4 {
		if gone := door.join(fmt.Sprint("c", i), fmt.Sprint("10.0.0.", i+1)); gone != "" {
			t.Fatalf("the door has room, but %s was closed", gone)
		}
	}
	door.all["c0"].Trust()
	if !door.all["c1"].BeginAnswer() {
		t.Fatal("c1 is refused its answer")
	}
	door.now = door.now.Add(time.Second)
	door.all["c2"].BeginWait(door.now)

	for _, step := range []struct{ join, want string }{
		{"n1", "c3"}, // c0 has a token, c1 gets an answer, c2 has just asked
		{"n2", "c2"},
		{"n3", "n1"},
	} {
		expect.Equal(t, door.join(step.join, "10.0.0.9"), step.want, "%s displaced", step.join)
	}
	if door.all["n1"].BeginAnswer() {
		t.Error("a connection that was displaced gets an answer")
	}

	// All that are left have a token or are being answered.
	door.all["n2"].Trust()
	door.all["n3"].Trust()
	if gone := door.join("n4", "10.0.0.9"); gone != "" || !door.all["n4"].ProbesOnly {
		t.Errorf("n4 displaced %q, probes only %v", gone, door.all["n4"].ProbesOnly)
	}
	if gone := door.join("n5", "10.0.0.9"); gone != "n4" {
		t.Errorf("n5 displaced %q, want n4 of the spare seat", gone)
	}
}

// Without tokens, the address that has the most gives way, so that it can't have them all.
func TestWithoutTokensTheLargestAddressGivesWay(t *testing.T) {
	t.Parallel()
	door := newCrowd(8, false)
	door.join("other", "10.0.0.2")
	for i := range 6 {
		door.join(fmt.Sprint("greedy", i), "10.0.0.1")
	}
	for i, want := range []string{"greedy0", "greedy1", "greedy2"} {
		expect.Equal(t, door.join(fmt.Sprint("more", i), "10.0.0.1"), want, "the greedy one's own newcomer displaced")
	}
	for i, want := range []string{"greedy3", "greedy4"} {
		expect.Equal(t, door.join(fmt.Sprint("new", i), fmt.Sprint("10.0.1.", i)), want, "a newcomer displaced")
	}
}

// One address with tokens leaves a quarter of the seats to others, because it stays a stranger
// beyond three quarters.
func TestTokensOfOneAddressLeaveRoom(t *testing.T) {
	t.Parallel()
	door := newCrowd(9, true)
	for i := range 8 {
		name := fmt.Sprint("gateway", i)
		door.join(name, "10.0.0.1")
		door.all[name].Trust()
	}
	for i, want := range []string{"gateway6", "gateway7", "n0"} {
		expect.Equal(t, door.join(fmt.Sprint("n", i), "10.0.0.2"), want, "n%d displaced", i)
	}
}

// Once a token is withdrawn, its connections may be displaced.
func TestWithdrawnTokensMakeStrangers(t *testing.T) {
	door := newCrowd(4, true) // one seat is spare
	for i := range 3 {
		name := fmt.Sprint("c", i)
		door.join(name, "10.0.0.1")
		door.all[name].Trust()
	}
	expect.Equal(t, door.join("n0", "10.0.0.2"), "", "displaced, while all are trusted")

	door.conns.distrust()
	door.all["c0"].Trust() // its token is still valid
	for i, want := range []string{"c1", "c2"} {
		expect.Equal(t, door.join(fmt.Sprint("m", i), "10.0.0.2"), want, "m%d displaced", i)
	}
	for _, c := range door.all {
		_ = c.Close()
	}
	expect.Equal(t, len(door.conns.seats.trustedOf), 0, "addresses of trusted seats")
	expect.Equal(t, door.conns.seats.taken, 0, "seats taken")
}

// Choosing whom to displace does not look at all connections for each newcomer.
func TestDisplacingIsCheapInACrowd(t *testing.T) {
	t.Parallel()
	const most = 4096
	door := newCrowd(most, true)
	for i := range 3 * most {
		door.now = door.now.Add(time.Second)
		door.conns.add(&fakeConn{address: "10.0.0.1"}).BeginWait(door.now)
		if door.conns.seats.taken > most {
			t.Fatalf("after %d: %d seats are taken", i, door.conns.seats.taken)
		}
	}
	if left := len(door.conns.seats.victims); left > most/victimsDivisor {
		t.Errorf("%d are chosen at once, want at most %d", left, most/victimsDivisor)
	}
}

func TestStrangersMayIdleForTenSeconds(t *testing.T) {
	t.Parallel()
	for _, tokens := range []bool{false, true} {
		door := newCrowd(4, tokens)
		door.join("c", "10.0.0.1")
		got := door.all["c"].IdleTimeout(time.Minute)
		door.all["c"].Trust()
		trusted := door.all["c"].IdleTimeout(time.Minute)
		want := map[bool]time.Duration{false: time.Minute, true: strangerIdle}[tokens]
		if got != want || trusted != time.Minute {
			t.Errorf("tokens %v: got %v, want %v; with a token %v", tokens, got, want, trusted)
		}
	}
}
