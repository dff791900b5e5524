package memnet

import (
	"net/netip"
	"sync"
	"time"
)

// Net is a network. Its zero value is not usable; call New.
type Net struct {
	mu       sync.Mutex                  // guards the rest; taken before the mutex of a pipe, socket or listener
	hosts    map[string]*Host            // the live host of each IP
	pipes    map[*pipe]struct{}          // every direction of every stream that is still open
	cut      map[direction]struct{}      // directions that deliver nothing
	isolated map[string]struct{}         // isolated hosts, cut off from future hosts too
	frozen   map[string]struct{}         //
	delay    time.Duration               // one way
	delays   map[direction]time.Duration // of directions with a delay of their own
	backoff  bool                        // streams resume after a cut as TCP does
	changed  chan struct{}               // closed and replaced when anything above changes
}

type direction struct{ from, to string }

// New returns a network without hosts.
func New() *Net {
	return &Net{
		hosts:    make(map[string]*Host),
		pipes:    make(map[*pipe]struct{}),
		cut:      make(map[direction]struct{}),
		isolated: make(map[string]struct{}),
		frozen:   make(map[string]struct{}),
		delays:   make(map[direction]time.Duration),
		changed:  make(chan struct{}),
	}
}

// Host returns the host with this IP. It creates the host on first use, and
// again after a crash. It panics if ip is not an IP address.
func (n *Net) Host(ip string) *Host {
	addr := netip.MustParseAddr(ip)
	ip = addr.String()
	n.mu.Lock()
	defer n.mu.Unlock()

	if h := n.hosts[ip]; h != nil {
		return h
	}

	h := &Host{net: n, ip: ip, addr: addr, listeners: make(map[int]*Listener),
		sockets: make(map[int]*PacketConn), port: 40000}

	for other := range n.isolated {
		n.cutLocked(ip, other)
		n.cutLocked(other, ip)
	}

	n.hosts[ip] = h
	n.wakeLocked()
	return h
}

// Cut stops delivery between a and b, in both directions.
func (n *Net) Cut(a, b string) {
	n.changeBetween(a, b, func() {
		n.cutLocked(a, b)
		n.cutLocked(b, a)
	})
}

// CutOneWay stops delivery from one host to another; the other direction is unchanged.
func (n *Net) CutOneWay(from, to string) {
	n.changeBetween(from, to, func() { n.cutLocked(from, to) })
}

// Heal undoes the cuts between a and b, in both directions.
func (n *Net) Heal(a, b string) {
	n.changeBetween(a, b, func() {
		delete(n.cut, direction{a, b})
		delete(n.cut, direction{b, a})
	})
}

// HealAll undoes every cut and every isolation. Frozen hosts stay frozen.
func (n *Net) HealAll() {
	n.change(func() {
		clear(n.cut)
		clear(n.isolated)
	})
}

// Isolate cuts a host off from all others, including future ones, until Rejoin
// or HealAll. Heal restores single links.
func (n *Net) Isolate(ip string) {
	n.change(func() {
		n.isolated[ip] = struct{}{}
		for other := range n.hosts {
			n.cutLocked(ip, other)
			n.cutLocked(other, ip)
		}
	})
}

// Rejoin undoes every cut of a host, and its isolation.
func (n *Net) Rejoin(ip string) {
	n.change(func() {
		delete(n.isolated, ip)
		for d := range n.cut {
			if d.from == ip || d.to == ip {
				delete(n.cut, d)
			}
		}
	})
}

// Delay sets the one-way transit time of everything sent from now on.
func (n *Net) Delay(d time.Duration) { n.change(func() { n.delay = d }) }

// DelayBetween overrides Delay in each direction between a and b, for everything sent from now on.
func (n *Net) DelayBetween(a, b string, d time.Duration) {
	n.changeBetween(a, b, func() { n.delays[direction{a, b}], n.delays[direction{b, a}] = d, d })
}

// delayLocked returns the transit time from one host to another.
func (n *Net) delayLocked(from, to string) time.Duration {
	if d, found := n.delays[direction{from, to}]; found {
		return d
	}
	return n.delay
}

// Backoff makes a stream with bytes in flight during a cut stall after the link
// is healed, for as long as the cut lasted, because TCP retransmits after
// pauses that double. New streams don't stall.
func (n *Net) Backoff() { n.change(func() { n.backoff = true }) }

// Freeze makes a host look as if its process were stopped: it sends and reads
// nothing, but others can connect to it and no connection breaks. Packets to it
// wait; those from it are lost.
func (n *Net) Freeze(ip string) { n.change(func() { n.frozen[ip] = struct{}{} }) }

// Thaw undoes Freeze.
func (n *Net) Thaw(ip string) { n.change(func() { delete(n.frozen, ip) }) }

// Break resets the streams between two hosts, as a firewall does. What was on its way is lost.
func (n *Net) Break(a, b string) {
	n.change(func() {
		for p := range n.pipes {
			from, to := p.host.from.ip, p.host.to.ip
			if from == a && to == b || from == b && to == a {
				p.reset(true, true)
			}
		}
	})
}

// Crash ends a host: its connections are reset, its listeners and sockets are
// closed, and its Host becomes useless. Net.Host makes a new one.
func (n *Net) Crash(ip string) {
	var listeners []*Listener
	var sockets []*PacketConn
	n.change(func() {
		h := n.hosts[ip]
		if h == nil {
			return
		}

		h.dead = true
		delete(n.hosts, ip)

		for _, l := range h.listeners {
			listeners = append(listeners, l)
		}

		for _, s := range h.sockets {
			sockets = append(sockets, s)
		}

		for p := range n.pipes {
			if p.host.from == h || p.host.to == h {
				p.reset(p.host.from == h, p.host.to == h)
			}
		}
	})

	for _, l := range listeners {
		l.Close()
	}

	for _, s := range sockets {
		s.Close()
	}
}

// Streams returns how many stream ends are open at a host, so that a test can check for leaks.
func (n *Net) Streams(ip string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := 0
	for p := range n.pipes {
		if p.host.from.ip == ip && !p.isWriterGone() {
			count++
		}
	}
	return count
}

// change runs f with the mutex held, and makes all streams go by what f changed.
func (n *Net) change(f func()) {
	n.changeFor(f, func(string, string) bool { return true })
}

// changeBetween is change for what concerns the links between a and b alone. In
// a large network, most streams are others.
func (n *Net) changeBetween(a, b string, f func()) {
	n.changeFor(f, func(from, to string) bool { return from == a && to == b || from == b && to == a })
}

func (n *Net) changeFor(f func(), concerns func(from, to string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	n.wakeLocked()
	for p := range n.pipes {
		from, to := p.host.from.ip, p.host.to.ip
		if concerns(from, to) {
			p.setPath(n.heldLocked(from, to), n.heldLocked(to, from), n.delayLocked(from, to), n.backoff)
		}
	}
}

// wakeLocked wakes all who wait for a host, a listener or a link. A new host or
// listener changes no stream, of which there may be very many.
func (n *Net) wakeLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *Net) cutLocked(from, to string) {
	if from != to {
		n.cut[direction{from, to}] = struct{}{}
	}
}

// isCutOffLocked reports whether the link itself is cut.
func (n *Net) isCutOffLocked(from, to string) bool {
	_, cut := n.cut[direction{from, to}]
	return cut
}

func (n *Net) isFrozenLocked(ip string) bool {
	_, frozen := n.frozen[ip]
	return frozen
}

// heldLocked reports whether stream bytes must wait.
func (n *Net) heldLocked(from, to string) bool {
	return n.isCutOffLocked(from, to) || n.isFrozenLocked(from) || n.isFrozenLocked(to)
}
