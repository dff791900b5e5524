package peer

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestNodesAtRestPulseTogether: idle nodes, started at different times, send
// the heartbeats of all their connections at the same twenty moments of a
// second.
func TestNodesAtRestPulseTogether(t *testing.T) {
	for late := range time.Duration(50) {
		onVirtualTime(t, func(t *testing.T, w *world) {
			nodes := []*node{w.node(1)}
			for i := range 2 {
				time.Sleep(late * time.Millisecond)
				nodes = append(nodes, w.node(i+2))
			}
			for i, n := range nodes {
				n.knows(nodes[(i+1)%3], nodes[(i+2)%3])
			}
			time.Sleep(2 * time.Second)
			moments, beats := map[time.Duration]bool{}, map[*conn]map[time.Duration]bool{}
			for range 1000 {
				time.Sleep(time.Millisecond)
				for _, n := range nodes {
					n.Peers.mu.Lock()
					for c := range n.conns {
						at := n.started.Sub(nodes[0].started) + time.Duration(c.lastBeat.Load())
						if beats[c] == nil {
							beats[c] = map[time.Duration]bool{}
						}
						moments[at], beats[c][at] = true, true
					}
					n.Peers.mu.Unlock()
				}
			}
			if len(moments) > 21 {
				t.Errorf("started %d ms later: %d moments in a second", late, len(moments))
			}
			for _, own := range beats {
				if len(own) < 20 {
					t.Errorf("started %d ms later: %d heartbeats of one end in a second", late, len(own))
				}
			}
			expect.Equal(t, len(beats), 12, "ends of connections send heartbeats")
		})
	}
}

// TestALateLookCountsLittle: time in which this process does not run is not
// silence of the other nodes.
func TestALateLookCountsLittle(t *testing.T) {
	const ms, every = time.Millisecond, 50 * time.Millisecond
	for _, tt := range []struct{ passed, wait, want time.Duration }{
		{20 * ms, every, 20 * ms}, {every, every, every}, {70 * ms, every, every},
		{80 * ms, every, every / 2}, {time.Hour, every, every / 2},
		{10 * ms, ms, ms}, {time.Hour, ms, ms},
	} {
		expect.Equal(t, countedSilence(tt.passed, tt.wait, every), tt.want, "%v instead of %v", tt.passed, tt.wait)
	}
}
