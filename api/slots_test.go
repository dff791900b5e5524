package api

import (
	"net"
	"testing"
)

// Every slot is free again once its connection leaves.
func TestSlotsComeBack(t *testing.T) {
	t.Parallel()
	p := newSlots(128)
	var all []*Connection
	for i := range 200 {
		c := &Connection{address: addressOf(&net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(i%3))})}
		if !p.take(c) {
			p.takeSpare(c)
		}
		all = append(all, c)
	}
	if p.taken != p.most || len(p.spareHolders) != p.spares || p.most+p.spares != 128 {
		t.Errorf("have %d and %d taken of %d and %d", p.taken, len(p.spareHolders), p.most, p.spares)
	}
	for _, c := range all {
		p.release(c)
		p.release(c)
	}
	if p.taken != 0 || len(p.spareHolders) != 0 || len(p.takenBy) != 0 {
		t.Errorf("have %d, %d, %v", p.taken, len(p.spareHolders), p.takenBy)
	}
	for have, want := range map[string]string{"2001:db8::1": "2001:db8::/64", "::ffff:192.0.2.1": "192.0.2.1/32", "fe80::1": "fe80::/64"} {
		if got := addressOf(&net.TCPAddr{IP: net.ParseIP(have), Zone: "x"}).String(); got != want {
			t.Errorf("%s: have %s, want %s", have, got, want)
		}
	}
}
