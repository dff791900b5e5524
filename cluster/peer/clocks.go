package peer

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Nodes compare their wall clocks at pulses. A node asks another one for its
// time, and assumes that the answer was made in the middle of the round trip.
// The shortest of the last eight round trips counts. A round trip proves
// nothing if it took long, if this process did not run meanwhile, or if this
// node's clock was set.

// MethodClock asks for the remote's wall clock: eight bytes, little endian,
// Unix nanoseconds. This package serves it.
const MethodClock Method = 254

const (
	clockSamples = 8 // round trips of which the best counts
	// clockRoundTrip is the longest round trip that counts. It shows a clock to
	// within half of its length.
	clockRoundTrip = 100 * time.Millisecond
	// clockPause is the least time between two questions to a node. With more than
	// 50 nodes, it is clockPauseEach for each of them.
	clockPause     = time.Second
	clockPauseEach = 20 * time.Millisecond
	// clockJump is how much the wall clock may move against Boottime between two
	// readings. A clock that has moved by more was set.
	clockJump = 20 * time.Millisecond
	// clockAge is how long a node's samples count after the last one was taken.
	clockAge = 30 * time.Second
)

// Clock is what another node's wall clock says.
type Clock struct {
	Node   ring.NodeID
	Region string        // empty for this node's own region
	Ahead  time.Duration // of this node's clock; negative if it is behind
}

// clockSample is a comparison of two clocks.
type clockSample struct {
	ahead, roundTrip time.Duration
}

// remoteClock has the last samples of a node.
type remoteClock struct {
	region  string
	samples []clockSample // the oldest first
	latest  time.Duration // when the last one was taken, by Boottime
}

// best returns the sample with the shortest round trip.
func (r *remoteClock) best() clockSample {
	return slices.MinFunc(r.samples, func(a, b clockSample) int { return int(a.roundTrip - b.roundTrip) })
}

// clocks compares this node's wall clock with those of others.
type clocks struct {
	asked time.Duration // when the nodes were last asked, by Boottime; only the pulse uses it

	mu sync.Mutex // guards the fields below
	// baseline is this node's wallOffset when remotes was last emptied. If it
	// has changed since, this node's clock was set.
	baseline time.Duration
	remotes  map[ring.NodeID]*remoteClock
}

// bothClocks is one reading of the wall clock and Boottime.
type bothClocks struct{ wall, boot time.Duration }

func (p *Peers) readClocks() bothClocks {
	return bothClocks{wall: time.Duration(p.config.Wall()), boot: p.config.Boottime()}
}

// wallOffset returns the wall clock less Boottime. It changes when the
// clock is set.
func (b bothClocks) wallOffset() time.Duration { return b.wall - b.boot }

// serveClock answers with this node's wall clock.
func (p *Peers) serveClock(c *Call) {
	c.Reply(binary.LittleEndian.AppendUint64(nil, uint64(p.config.Wall())))
}

// compareClocks asks the nodes for their clocks, unless they were asked a
// moment ago. Only the pulse calls it.
func (p *Peers) compareClocks() {
	now := p.readClocks()
	links := *p.links.Load()
	if now.boot-p.clocks.asked < max(clockPause, time.Duration(len(links))*clockPauseEach) {
		return
	}

	p.clocks.asked = now.boot
	p.clocks.begin(now, links)

	for id, l := range links {
		conn := p.pathTo(id)
		if conn == nil {
			continue
		}

		region := ""
		if l.kind == kindFar {
			region = conn.remote.Region
		}

		sent := p.readClocks()
		p.Go(id, MethodClock, nil, 2*clockRoundTrip, func(reply []byte, err error) {
			if err == nil && len(reply) == 8 {
				p.clocks.note(id, region, sent, p.readClocks(), time.Duration(binary.LittleEndian.Uint64(reply)))
			}
		})
	}
}

// begin forgets nodes without a link. If this node's clock was set, it forgets
// all samples: they compare with the clock as it was before.
func (cs *clocks) begin(now bothClocks, links map[ring.NodeID]*link) {
	cs.mu.Lock()
	defer cs.mu.Unlock()

	if (now.wallOffset()-cs.baseline).Abs() > clockJump || cs.remotes == nil {
		cs.remotes = map[ring.NodeID]*remoteClock{}
		cs.baseline = now.wallOffset()
	}
	maps.DeleteFunc(cs.remotes, func(id ring.NodeID, _ *remoteClock) bool { return links[id] == nil })
}

// note keeps a node's answer as a sample, if it proves anything.
func (cs *clocks) note(id ring.NodeID, region string, sent, received bothClocks, remote time.Duration) {
	cs.mu.Lock()
	defer cs.mu.Unlock()

	roundTrip := received.boot - sent.boot
	skew := received.wallOffset()
	wasSet := (skew-sent.wallOffset()).Abs() > clockJump || (skew-cs.baseline).Abs() > clockJump
	if roundTrip < 0 || roundTrip > clockRoundTrip || wasSet {
		return
	}

	r := cs.remotes[id]
	if r == nil {
		r = &remoteClock{}
		cs.remotes[id] = r
	}

	r.region = region
	r.latest = received.boot
	r.samples = append(r.samples, clockSample{ahead: remote - (received.wall - roundTrip/2), roundTrip: roundTrip})
	r.samples = r.samples[max(0, len(r.samples)-clockSamples):]
}

// Clocks returns the clocks of the other nodes that have answered within the
// last 30 s, in order of their IDs.
func (p *Peers) Clocks() (list []Clock) {
	now := p.config.Boottime()
	p.clocks.mu.Lock()
	defer p.clocks.mu.Unlock()

	for id, r := range p.clocks.remotes {
		if now-r.latest <= clockAge {
			list = append(list, Clock{Node: id, Region: r.region, Ahead: r.best().ahead})
		}
	}
	slices.SortFunc(list, func(a, b Clock) int { return a.Node.Compare(b.Node) })
	return list
}

// EarliestClock returns what the slowest wall clock shows now, among this
// node's own and those in Clocks, and how many others are known. If this node's
// clock was just set, the others' readings are still relative to the clock as it
// was before.
func (p *Peers) EarliestClock() (earliest time.Time, others int) {
	now := p.readClocks()
	at := now.wall
	p.clocks.mu.Lock()
	defer p.clocks.mu.Unlock()

	for _, r := range p.clocks.remotes {
		if now.boot-r.latest <= clockAge {
			at = min(at, now.boot+p.clocks.baseline+r.best().ahead)
			others++
		}
	}
	return time.Unix(0, int64(at)), others
}
