package simulation

import (
	"math/rand/v2"
	"time"
)

// Times of the network, those of package peer.
const (
	// silence is the time without a frame after which a node is unreachable. Frames are sent five times as often.
	silence = 250 * time.Millisecond
	// farSilence is silence between regions.
	farSilence = 2 * time.Second
	// maxSilentConnection is how long a silent connection is kept. After a shorter cut, it continues with the next frame.
	maxSilentConnection = 5 * time.Second
	// redial is the longest pause before a broken connection is dialled again.
	redial = time.Second
	// retryInterval is the time between attempts to deliver a message over a link that is cut.
	retryInterval = 40 * time.Millisecond
	// forever is the end of a fault that goes on.
	forever = time.Duration(1<<63 - 1)
	// saltNotice and saltRejoin separate the hashes for noticing a fault and for recovering from it.
	saltNotice, saltRejoin = 1, 2
)

// fault is a fault of the network or of a node.
type fault struct {
	id          uint64
	from, until time.Duration
	// blocks reports whether no message gets from a to b. Its result does not change during the fault.
	blocks func(a, b int) bool
	// reset means that connections break at once, as when a process is killed and its machine is not.
	reset bool
}

func (f *fault) touches(a, b int) bool { return f.blocks(a, b) || f.blocks(b, a) }

// network is which nodes reach each other. The caller of its methods holds the world's mutex.
type network struct {
	seed uint64
	n    int
	// silence is the time without a frame after which the other end is unreachable. Frames are sent five times as often.
	silence time.Duration
	random  *rand.Rand
	faults  []*fault
	last    []time.Duration // by link: when its last message arrives; messages stay in order
	slow    []time.Duration // by node: the mean extra time of a message to or from it
	serial  uint64
}

func newNetwork(seed uint64, n int) network {
	return network{
		seed: seed, n: n, silence: silence, random: rand.New(rand.NewPCG(seed, 2)), last: make([]time.Duration, n*n), slow: make([]time.Duration, n),
	}
}

// addFault adds a fault.
func (n *network) addFault(now time.Duration, reset bool, blocks func(a, b int) bool) *fault {
	n.serial++
	f := &fault{id: n.serial, from: now, until: forever, blocks: blocks, reset: reset}
	n.faults = append(n.faults, f)
	return f
}

// dropOldFaults drops faults whose end all nodes have noticed.
func (n *network) dropOldFaults(now time.Duration) {
	kept := n.faults[:0]
	for _, f := range n.faults {
		if f.until == forever || f.until+redial+retryInterval >= now {
			kept = append(kept, f)
		}
	}
	n.faults = kept
}

// blocked reports whether a message from a to b would not arrive now.
func (n *network) blocked(now time.Duration, a, b int) bool {
	for _, f := range n.faults {
		if f.from <= now && now < f.until && f.blocks(a, b) {
			return true
		}
	}
	return false
}

// hashDuration returns a time from 0 to d that depends only on the seed, the salt, the fault and the link.
func (n *network) hashDuration(d time.Duration, salt uint64, f *fault, a, b int) time.Duration {
	x := n.seed ^ f.id<<44 ^ salt<<40 ^ uint64(a)<<20 ^ uint64(b)
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return time.Duration((x ^ x>>31) % uint64(d))
}

// noticedAt returns the time at which a notices that fault f cuts it off from b.
func (n *network) noticedAt(f *fault, a, b int) time.Duration {
	if f.reset {
		return f.from + n.hashDuration(2*time.Millisecond, saltNotice, f, a, b)
	}
	frame := n.silence / 5
	at := f.from + n.silence - n.hashDuration(frame, saltNotice, f, a, b)
	if !f.blocks(b, a) {
		at += n.silence + n.hashDuration(frame, saltNotice, f, b, a) // b hears nothing, and then stops sending
	}
	return at
}

// rejoinedAt returns the time at which a reaches b again after fault f.
func (n *network) rejoinedAt(f *fault, a, b int) time.Duration {
	if f.until == forever {
		return forever
	}
	frame := n.silence / 5
	if f.reset || f.until-f.from > maxSilentConnection {
		return f.until + frame + n.hashDuration(redial-frame, saltRejoin, f, min(a, b), max(a, b))
	}
	return f.until + n.hashDuration(frame, saltRejoin, f, min(a, b), max(a, b))
}

// reachable reports whether a considers b reachable.
func (n *network) reachable(now time.Duration, a, b int) bool {
	for _, f := range n.faults {
		if now < f.from || !f.touches(a, b) {
			continue
		}
		if at := n.noticedAt(f, a, b); at <= now && at < f.until && now < n.rejoinedAt(f, a, b) {
			return false
		}
	}
	return true
}

// lostAt returns the time at which a notices that its link to b, which is blocked now, is broken: the earliest over all
// faults.
func (n *network) lostAt(now time.Duration, a, b int) time.Duration {
	first := forever
	for _, f := range n.faults {
		if f.from <= now && now < f.until && f.touches(a, b) {
			first = min(first, n.noticedAt(f, a, b))
		}
	}
	return first
}

// drawArrival draws the time at which a message that a sends to b now arrives: usually within half a millisecond.
func (n *network) drawArrival(now time.Duration, a, b int) time.Duration {
	d := 100*time.Microsecond + time.Duration(n.random.ExpFloat64()*float64(200*time.Microsecond))
	if n.random.IntN(200) == 0 {
		d += time.Duration(n.random.Int64N(int64(60 * time.Millisecond)))
	}
	if s := n.slow[a] + n.slow[b]; s > 0 {
		d += time.Duration(n.random.ExpFloat64() * float64(s))
	}
	at := max(now+d, n.last[a*n.n+b]+1)
	n.last[a*n.n+b] = at
	return at
}

// components labels the nodes that reach each other, directly or through others. A dead node has its own label.
func (n *network) components(now time.Duration, alive func(int) bool) []int {
	label := make([]int, n.n)
	rest := make([]int, 0, n.n)
	for i := range label {
		if label[i] = -1 - i; alive(i) {
			rest = append(rest, i)
		}
	}

	for len(rest) > 0 {
		queue := []int{rest[0]}
		own := rest[0]

		rest = rest[1:]
		for len(queue) > 0 {
			a := queue[0]
			queue = queue[1:]
			label[a] = own

			kept := rest[:0]
			for _, b := range rest {
				if n.blocked(now, a, b) || n.blocked(now, b, a) {
					kept = append(kept, b)
				} else {
					queue = append(queue, b)
				}
			}

			rest = kept
		}
	}

	return label
}
