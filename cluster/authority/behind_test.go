package authority

import (
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// stays makes a node apply no further entries.
func (d *desk) stays(n byte) {
	applied, generation := d.state.Index, d.state.Generation(id(n))
	d.change(n, func(q *Request) { q.Applied, q.Generation = applied, generation })
}

func (d *desk) change(n byte, alter func(*Request)) {
	if d.alter == nil {
		d.alter = map[byte]func(*Request){}
	}
	d.alter[n] = alter
}

// rule puts new rules in force.
func (d *desk) rule() {
	d.apply(agreement.Empty{})
	d.ruled = d.state.Index
}

// ended returns the entries that end nodes.
func ended(entries []agreement.Entry) (list []agreement.EndNode) {
	for _, e := range entries {
		if e, ok := e.(agreement.EndNode); ok {
			list = append(list, e)
		}
	}
	return list
}

func (d *desk) inRing(n byte) bool { return d.state.InRing(id(n)) }

// TestWhoAsksInVainIsEnded: a node that is refused for a reason of its own is
// ended after five seconds without authority, and no sooner.
func TestWhoAsksInVainIsEnded(t *testing.T) {
	for name, begin := range map[string]func(d *desk){
		"it does not apply an end": func(d *desk) {
			d.stays(3)
			d.apply(agreement.EndNode{Node: id(9), Reason: agreement.Silent})
		},
		"it does not apply new rules": func(d *desk) {
			d.stays(3)
			d.rule()
			d.run(rulesGrace+Validity, 1, 2, 3, 4)
		},
		"it applies nothing more, and says so": func(d *desk) {
			d.change(3,
				func(q *Request) { q.Stuck, q.NoAuthorityFor = true, max(q.NoAuthorityFor, time.Millisecond) })
		},
		"grants do not help": func(d *desk) {
			since := d.now
			d.change(3, func(q *Request) { q.NoAuthorityFor = d.now - since })
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, 4)
			d.up(1, 2, 3, 4)
			begin(d)
			if list := ended(d.run(behindPatience-time.Second, 1, 2, 3, 4)); len(list) != 0 {
				t.Fatalf("%+v is ended too soon", list)
			}
			list := ended(d.run(2*Validity+time.Second, 1, 2, 3, 4))
			if len(list) != 1 || list[0].Node != id(3) || list[0].Reason != agreement.Behind || d.inRing(3) {
				t.Fatalf("have %+v, want an end of node 3", list)
			}
			if d.state.Processes[id(3)].Suspension.Times != 1 {
				t.Error("it is not counted")
			}
		})
	}
}

// TestWhoLagsIsEnded: the node has authority, because no node was ended, but it
// begins no copies by a revision that it has not applied, and no move can finish
// without it.
func TestWhoLagsIsEnded(t *testing.T) {
	for name, change := range map[string]func(d *desk) (asking []byte){
		"the ring changes": func(d *desk) []byte {
			d.node(5)
			return []byte{1, 2, 3, 4, 5}
		},
		"a node restarts": func(d *desk) []byte {
			d.node(4).Boot++
			return []byte{1, 2, 3, 4}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, 4)
			d.up(1, 2, 3, 4)
			d.stays(3)
			if list := ended(d.run(20*time.Second, 1, 2, 3, 4)); len(list) != 0 {
				t.Fatalf("%+v is ended, and lacks no revision", list)
			}

			asking := change(d)
			if list := ended(d.run(behindPatience, asking...)); len(list) != 0 {
				t.Fatalf("%+v is ended too soon", list)
			}

			list := ended(d.run(2*EndingWait+time.Second, asking...))
			if len(list) != 1 || list[0].Node != id(3) || list[0].Reason != agreement.Behind || !d.state.Settled {
				t.Errorf("have %+v, want an end of node 3", list)
			}
			for _, n := range asking {
				if d.inRing(n) == (n == 3) {
					t.Errorf("node %d: in the ring: %t", n, d.inRing(n))
				}
			}
		})
	}
}

// TestWhoIsNotEndedForAsking: no node is ended for reasons that are not its
// own, or by a leader that can't commit.
func TestWhoIsNotEndedForAsking(t *testing.T) {
	t.Run("a leader whose entries do not commit", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		d.stays(3)
		d.apply(agreement.EndNode{Node: id(9)})
		for end := d.now + 20*time.Second; d.now < end; d.now += tickInterval {
			for n := byte(1); n <= 3; n++ {
				q := d.request(n)
				d.reignState.handleRequest(d.now, d.state, &q)
			}
			if list := ended(kind(d.decide())); len(list) != 0 {
				t.Fatalf("%+v is ended", list)
			}
		}
	})
	t.Run("one that has given up", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		d.change(3, func(q *Request) { q.GivingUp = true })
		if list := ended(d.run(20*time.Second, 1, 2, 3)); len(list) != 0 {
			t.Fatalf("%+v is ended", list)
		}
	})
	t.Run("a copy of another node's directory", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		for end := d.now + 20*time.Second; d.now < end; {
			q := d.request(3)
			q.Boot, q.NoAuthorityFor = 999, 10*time.Second
			d.ask(q)
			if list := ended(d.run(tickInterval, 1, 2, 3)); len(list) != 0 {
				t.Fatalf("%+v is ended", list)
			}
		}
	})
	t.Run("a leader that was late", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		d.stays(3)
		d.apply(agreement.EndNode{Node: id(9)})
		d.run(behindPatience-time.Second, 1, 2, 3)
		d.now += time.Second
		if list := ended(d.run(behindPatience-time.Second, 1, 2, 3)); len(list) != 0 {
			t.Fatalf("%+v is ended", list)
		}
	})
	t.Run("a new reign", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		d.stays(3)
		d.apply(agreement.EndNode{Node: id(9)})
		d.run(behindPatience-time.Second, 1, 2, 3)
		d.lead(3)
		if list := ended(d.run(behindPatience-time.Second, 1, 2, 3)); len(list) != 0 {
			t.Fatalf("%+v is ended", list)
		}
		if list := ended(d.run(3*time.Second, 1, 2, 3)); len(list) != 1 {
			t.Fatalf("have %+v, want an end of node 3", list)
		}
	})
}

// TestOneInTenSeconds: of many nodes asking without success, one is ended every
// ten seconds, and never so many that less than half of the ring has authority.
func TestOneInTenSeconds(t *testing.T) {
	d := newDesk(t, 7)
	d.up(1, 2, 3, 4, 5, 6, 7)
	for n := byte(4); n <= 7; n++ {
		d.stays(n)
	}
	d.apply(agreement.EndNode{Node: id(9)})
	if list := ended(d.run(time.Minute, 1, 2, 3, 4, 5, 6, 7)); len(list) != 0 {
		t.Fatalf("%+v are ended, and less than half have authority", list)
	}
	delete(d.alter, 4)
	last := time.Duration(never)
	n := 0
	for range 3000 {
		if list := ended(d.run(tickInterval, 1, 2, 3, 4, 5, 6, 7)); len(list) > 0 {
			if len(list) > 1 || d.now-last < behindPause-tickInterval {
				t.Fatalf("%+v are ended %s after the last", list, d.now-last)
			}
			last, n = d.now, n+1
		}
	}
	if n != 3 {
		t.Fatalf("%d are ended, not 3", n)
	}
	for n := byte(1); n <= 4; n++ {
		if !d.inRing(n) {
			t.Errorf("node %d is out of the ring", n)
		}
	}
}

// TestALeaderHandsOn: a leader that would have to end itself hands over the lead.
func TestALeaderHandsOn(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.stays(1)
	d.rule()
	if list := ended(d.run(30*time.Second, 1, 2, 3)); len(list) != 0 {
		t.Fatalf("%+v is ended", list)
	}
	if d.handed < 1 || d.handed > 3 {
		t.Errorf("the lead was transferred %d times", d.handed)
	}
}

// TestPatience: a node that was taken out comes back after doing well for ten
// seconds, and twice as long after each further time.
func TestPatience(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	for _, patience := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		d.stays(3)
		d.apply(agreement.EndNode{Node: id(9), Generation: d.state.Generation(id(9))})
		for range 1000 {
			if d.run(tickInterval, 1, 2, 3); !d.inRing(3) {
				break
			}
		}
		d.run(5*time.Second, 1, 2, 3)
		if !slices.Equal(d.reignState.ungranted, []ring.NodeID{id(3)}) {
			t.Fatalf("have %v, want node 3 reported as behind", d.reignState.ungranted)
		}
		delete(d.alter, 3)
		d.run(patience-tickInterval, 1, 2, 3)
		if d.inRing(3) {
			t.Fatalf("it is back before %s", patience)
		}
		d.run(2*time.Second, 1, 2, 3)
		if !d.inRing(3) || len(d.reignState.ungranted) != 0 {
			t.Fatalf("it is not back after %s", patience)
		}
	}
}

// TestFloor: a node that has not applied new rules is refused as soon as all
// other nodes have, or rulesGrace after a majority of the ring has, but not
// before.
func TestFloor(t *testing.T) {
	refused := func(d *desk, n byte) bool { return d.ask(d.request(n)).Reason == reasonRules }
	t.Run("a majority has", func(t *testing.T) {
		d := newDesk(t, 4)
		d.up(1, 2, 3, 4)
		d.stays(4)
		d.rule()
		d.run(rulesGrace-tickInterval, 1, 2, 3, 4)
		if refused(d, 4) {
			t.Fatal("it is refused too soon")
		}
		d.run(5*tickInterval, 1, 2, 3, 4)
		if !refused(d, 4) || refused(d, 3) {
			t.Fatal("it is not refused")
		}
	})
	t.Run("no majority has", func(t *testing.T) {
		d := newDesk(t, 4)
		d.up(1, 2, 3, 4)
		d.stays(3)
		d.stays(4)
		d.rule()
		d.run(20*time.Second, 1, 2, 3, 4)
		if refused(d, 4) || d.reignState.appliedByMajority(d.state, d.ruled) {
			t.Fatal("half of the ring is refused")
		}
	})
	t.Run("a storm", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		d.stays(3)
		for range 400 {
			if d.reignState.appliedByMajority(d.state, d.ruled) { // each write waits for this
				d.rule()
			}
			d.run(tickInterval, 1, 2, 3)
			if len(d.reignState.pendingFloors) > int(rulesGrace/tickInterval)+1 {
				t.Fatalf("%d versions are looked at", len(d.reignState.pendingFloors))
			}
		}
		if d.inRing(3) {
			t.Fatal("a node that is twenty seconds behind is in the ring")
		}
	})
	t.Run("all have", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		d.rule()
		d.run(time.Second, 1, 2, 3)
		if d.reignState.floor != d.ruled {
			t.Fatalf("the floor is %d, not %d", d.reignState.floor, d.ruled)
		}
	})
}

// TestReachedOnlyByOthers: a node that most nodes reach only through other
// nodes is taken out of the ring once, with a hand-off, and rejoins only after
// they reach it directly.
func TestReachedOnlyByOthers(t *testing.T) {
	d := newDesk(t, 5)
	d.up(1, 2, 3, 4, 5)
	relayed := func(nodes ...byte) {
		for n := byte(1); n <= 5; n++ {
			d.change(n, func(q *Request) {
				if slices.Contains(nodes, n) {
					q.Relayed = []ring.NodeID{id(5)}
				}
			})
		}
	}
	relayed(1, 2)
	d.want(d.run(30*time.Second, 1, 2, 3, 4, 5))
	relayed(1, 2, 3)
	d.want(d.run(relayedPatience-time.Second, 1, 2, 3, 4, 5))
	// the ring is rebuilt without the hole
	d.want(d.run(2*time.Minute, 1, 2, 3, 4, 5), "Leave", "SettleMove", "Ring", "SettleMove")
	if d.inRing(5) || d.state.Processes[id(5)].Suspension.Times != 1 {
		t.Fatal("it is in the ring, or not counted")
	}
	relayed()
	d.run(9*time.Second, 1, 2, 3, 4, 5)
	if d.inRing(5) {
		t.Fatal("it is back too soon")
	}
	d.run(3*time.Second, 1, 2, 3, 4, 5)
	if !d.inRing(5) {
		t.Fatal("it is not back")
	}
}

// TestALeaderThatIsReachedByOthersHandsOn: a leader that most nodes reach only
// through another node hands over the lead.
func TestALeaderThatIsReachedByOthersHandsOn(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	for n := byte(2); n <= 3; n++ {
		d.change(n, func(q *Request) { q.Relayed = []ring.NodeID{id(1)} })
	}
	d.want(d.run(25*time.Second, 1, 2, 3))
	if d.handed < 1 || d.handed > 3 {
		t.Errorf("the lead was transferred %d times", d.handed)
	}
}

// TestRemovedByForce: a live node is ended at once, and its process never gets authority again.
func TestRemovedByForce(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.node(3).become(isGone)
	d.node(3).Removed = true
	list := ended(d.run(EndingWait+time.Second, 1, 2, 3))
	if len(list) != 1 || list[0].Reason != agreement.Removed || d.inRing(3) {
		t.Fatalf("have %+v, want an end of node 3", list)
	}
	d.node(3).become(isAlive)
	d.node(3).Removed = false
	if reply := d.ask(d.request(3)); !reply.Removed {
		t.Fatalf("have %+v, want a refusal that says removed", reply)
	}
	d.run(time.Minute, 1, 2, 3)
	if d.inRing(3) {
		t.Fatal("it is in the ring again")
	}
	d.node(3).Boot++
	d.run(10*time.Second, 1, 2, 3)
	if !d.inRing(3) {
		t.Fatal("the node's next process is not admitted")
	}
	t.Run("out of the ring", func(t *testing.T) {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		d.node(4).SupportsRing = false
		d.run(time.Second, 1, 2, 3, 4)
		d.node(4).Removed = true
		d.want(d.run(5*time.Second, 1, 2, 3, 4), "EndNode")
		if reply := d.ask(d.request(4)); !reply.Removed {
			t.Fatalf("have %+v, want a refusal that says removed", reply)
		}
	})
}
