package simulation

import (
	"math/rand/v2"
	"time"
)

// Times of the network, those of package peer.
const (
	// silence is after how long without a frame a node is unreachable; frames come each fifth of it.
	silence = 250 * time.Millisecond
	// farSilence is that between regions.
	farSilence = 2 * time.Second
	// brief is how long a connection that is silent is kept; what was cut for less goes on with the next frame.
	maxSilentConnection = 5 * time.Second
	// redial is the longest pause before a broken connection is dialled anew.
	redial = time.Second
	// again is from one attempt to the next at getting a message through a link that is cut and may be whole again.
	retryInterval = 40 * time.Millisecond
	// forever is the end of a fault that is not over.
	forever = time.Duration(1<<63 - 1)
	// saltNotice and saltRejoin hash apart what a fault's noticing and what its end take.
	saltNotice, saltRejoin = 1, 2
)

// fault is something wrong with the network, or with a node.
type fault struct {
	id          uint64
	from, until time.Duration
	// blocks reports whether nothing gets from a to b. It does not change while the fault lasts.
	blocks func(a, b int) bool
	// reset: connections are told that they are broken, as when a process is killed on a machine that lives.
	reset bool
}

func (f *fault) touches(a, b int) bool { return f.blocks(a, b) || f.blocks(b, a) }

// network is who hears whom. Its methods are called under the world's mutex.
type network struct {
	seed uint64
	n    int
	// silence is after how long without a frame the other end is unreachable; frames come each fifth of it.
	silence time.Duration
	random  *rand.Rand
	faults  []*fault
	last    []time.Duration // by link: when its last message arrives; a link keeps the order
	slow    []time.Duration // by node: what a message to or from it takes longer, on average
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

// dropOldFaults drops faults whose end everyone has noticed.
func (n *network) dropOldFaults(now time.Duration) {
	kept := n.faults[:0]
	for _, f := range n.faults {
		if f.until == forever || f.until+redial+retryInterval >= now {
			kept = append(kept, f)
		}
	}
	n.faults = kept
}

// blocked reports whether a message from a to b doesn't arrive now.
func (n *network) blocked(now time.Duration, a, b int) bool {
	for _, f := range n.faults {
		if f.from <= now && now < f.until && f.blocks(a, b) {
			return true
		}
	}
	return false
}

// hashDuration is a number from 0 to d that depends on nothing but the seed and what it is for.
func (n *network) hashDuration(d time.Duration, salt uint64, f *fault, a, b int) time.Duration {
	x := n.seed ^ f.id<<44 ^ salt<<40 ^ uint64(a)<<20 ^ uint64(b)
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return time.Duration((x ^ x>>31) % uint64(d))
}

// noticedAt is when a finds that it hears nothing of b, f being why.
func (n *network) noticedAt(f *fault, a, b int) time.Duration {
	if f.reset {
		return f.from + n.hashDuration(2*time.Millisecond, saltNotice, f, a, b)
	}
	frame := n.silence / 5
	at := f.from + n.silence - n.hashDuration(frame, saltNotice, f, a, b)
	if !f.blocks(b, a) {
		at += n.silence + n.hashDuration(frame, saltNotice, f, b, a) // b hears nothing, and then says nothing
	}
	return at
}

// rejoinedAt is when a hears b again, f being over.
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

// reachable is what a node knows of another one.
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

// lostAt is when a finds that a link is broken that is blocked now: the first of what makes it so.
func (n *network) lostAt(now time.Duration, a, b int) time.Duration {
	first := forever
	for _, f := range n.faults {
		if f.from <= now && now < f.until && f.touches(a, b) {
			first = min(first, n.noticedAt(f, a, b))
		}
	}
	return first
}

// drawArrival is when a message that a sends to b now arrives: about half a millisecond, seldom much more.
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

// components labels nodes that hear each other, perhaps by way of others. Dead ones are alone.
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
