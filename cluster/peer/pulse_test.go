package peer

import (
	"testing"
	"time"
)

// TestNodesAtRestPulseTogether: whenever they were started, two nodes send the heartbeats of both their connections at the
// same twenty moments of a second.
func TestNodesAtRestPulseTogether(t *testing.T) {
	for late := range time.Duration(50) {
		inBubble(t, func(t *testing.T, w *world) {
			a := w.node(1)
			time.Sleep(late * time.Millisecond)
			b := w.node(2)
			a.knows(b)
			b.knows(a)
			w.connected(a, b)
			w.connected(b, a)
			time.Sleep(time.Second)
			moments, beats := map[int64]bool{}, map[*conn]map[int64]bool{}
			for range 1000 {
				time.Sleep(time.Millisecond)
				for _, n := range []*node{a, b} {
					n.Peers.mu.Lock()
					for c := range n.conns {
						at := int64(n.started.Sub(a.started)) + c.beaten.Load()
						if beats[c] == nil {
							beats[c] = map[int64]bool{}
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
				if len(own) < 20 || len(own) > 22 {
					t.Errorf("started %d ms later: %d heartbeats of one end in a second", late, len(own))
				}
			}
		})
	}
}
