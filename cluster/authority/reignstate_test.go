package authority

import (
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

func id(n byte) ring.NodeID { return ring.NodeID{15: n} }

// desk is a reignState with a log and a clock that the test controls.
type desk struct {
	t          *testing.T
	reignState *reignState
	state      *agreement.State
	now        time.Duration
	nodes      map[byte]*Node
	cried      int
	ruled      uint64
	handed     int
	granted    map[byte]time.Duration  // each node's last grant
	alter      map[byte]func(*Request) // changes a node's requests
}

const testReign = 77

func newDesk(t *testing.T, expect int) *desk {
	d := &desk{t: t, state: agreement.New(), now: time.Hour, nodes: make(map[byte]*Node),
		granted: map[byte]time.Duration{}}
	d.apply(agreement.FoundCluster{Cluster: agreement.ClusterID{1}, SigningKey: make([]byte, 32)})
	d.lead(expect)
	return d
}

// lead begins a reign of node 1.
func (d *desk) lead(expect int) {
	d.apply(agreement.Reign{Number: testReign})
	d.reignState = newReignState(id(1), 101, expect, testReign, d.now)
	d.reignState.alarm = func(string, ...any) { d.cried++ }
	d.reignState.transferLead = func() { d.handed++ }
}

func (d *desk) apply(e agreement.Entry) {
	d.t.Helper()
	b, err := agreement.ThisBuild.Encode(e)
	expect.NoError(d.t, err)
	next, result := d.state.Apply(d.state.Index+1, b)
	if result.Err != nil {
		d.t.Fatalf("%#v: %v", e, result.Err)
	}
	d.state = next
}

// node returns a node, creating it if needed; its first process is 100 plus its number.
func (d *desk) node(n byte) *Node {
	if d.nodes[n] == nil {
		d.nodes[n] = &Node{
			Member: agreement.Member{ID: id(n), Name: string('a' + rune(n))}, Boot: 100 + uint64(n),
			Alive:        true,
			SupportsRing: true,
		}
	}
	return d.nodes[n]
}

// request returns what a healthy node sends now.
func (d *desk) request(n byte) Request {
	q := Request{
		Node: id(n), Boot: d.node(n).Boot, Generation: d.state.Generation(id(n)), Applied: d.state.Index,
		SettledEpoch: d.state.Epoch,
	}
	if at, ok := d.granted[n]; ok && d.now-at >= Validity {
		q.NoAuthorityFor = d.now - at - Validity
	}
	if alter := d.alter[n]; alter != nil {
		alter(&q)
	}
	return q
}

// ask passes a request to the reignState and has it granted unless it is refused.
func (d *desk) ask(q Request) Reply {
	if r := d.reignState.handleRequest(d.now, d.state, &q); r.Reason != "" {
		return r
	}
	d.reignState.leadConfirmedAt = d.now
	reply := d.reignState.grant(d.now, d.state, &q)
	if reply.Granted {
		d.granted[q.Node[15]] = d.now
	}
	return reply
}

// decide returns the next entry without applying it.
func (d *desk) decide() agreement.Entry {
	var nodes []Node
	for _, n := range d.nodes {
		nodes = append(nodes, *n)
	}
	return d.reignState.nextEntry(newDecisionInput(d.now, time.UnixMilli(0), d.state, d.ruled, nodes))
}

// run lets time pass in ticks while the nodes ask and decided entries are
// applied; it returns those entries.
func (d *desk) run(span time.Duration, healthy ...byte) []agreement.Entry {
	d.t.Helper()
	var all []agreement.Entry
	for end := d.now + span; d.now < end; d.now += tickInterval {
		for _, n := range healthy {
			if (d.now/tickInterval)%5 == time.Duration(n)%5 {
				d.ask(d.request(n))
			}
		}
		for e := d.decide(); e != nil; e = d.decide() {
			switch e := e.(type) {
			case agreement.RegisterProcess:
				if e.Reign != testReign {
					d.t.Errorf("have %+v, want the reign that decided it", e)
				}
			case agreement.EndNode:
				if e.Reign != testReign {
					d.t.Errorf("have %+v, want the reign that decided it", e)
				}
			}
			d.apply(e)
			d.reignState.recordOutcome(e)
			all = append(all, e)
		}
	}
	return all
}

// up makes a settled ring of the nodes, and discards the entries.
func (d *desk) up(nodes ...byte) {
	d.t.Helper()
	for _, n := range nodes {
		d.node(n)
	}
	d.run(5*time.Second, nodes...)
	if have := len(d.state.To.Members()); have != len(nodes) || !d.state.Settled {
		d.t.Fatalf("the ring has %d members, want %d", have, len(nodes))
	}
}

func kind(e agreement.Entry) []agreement.Entry { return []agreement.Entry{e} }

func kinds(entries []agreement.Entry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, reflect.TypeOf(e).Name())
	}
	return out
}

func (d *desk) want(have []agreement.Entry, want ...string) {
	d.t.Helper()
	if k := kinds(have); !reflect.DeepEqual(k, want) {
		d.t.Fatalf("have entries %v, want %v", k, want)
	}
}

func TestFirstRing(t *testing.T) {
	tests := []struct {
		name   string
		expect int
		nodes  []byte
		within time.Duration // the ring exists by then
		before time.Duration // and not yet by then
	}{
		{"alone", 1, []byte{1}, 600 * time.Millisecond, 150 * time.Millisecond},
		{"all that are expected", 3, []byte{1, 2, 3}, 800 * time.Millisecond, 150 * time.Millisecond},
		{"one of three does not come", 3, []byte{1, 2}, 3200 * time.Millisecond, 2900 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t, tt.expect)
			for _, n := range tt.nodes {
				d.node(n)
			}
			d.run(tt.before, tt.nodes...)
			if d.state.Epoch != 0 {
				t.Fatalf("there is a ring after %v", tt.before)
			}
			d.run(tt.within-tt.before, tt.nodes...)
			if d.state.Epoch != 1 || len(d.state.To.Members()) != len(tt.nodes) {
				t.Fatalf("have epoch %d of %d members", d.state.Epoch, len(d.state.To.Members()))
			}
		})
	}
}

func TestNoRingBeforeThereIsACluster(t *testing.T) {
	d := &desk{t: t, state: agreement.New(), now: time.Hour, nodes: make(map[byte]*Node),
		granted: map[byte]time.Duration{}}
	d.lead(1)
	d.node(1)
	d.run(5*time.Second, 1)
	if d.state.Epoch != 0 {
		t.Error("there is a ring and no cluster")
	}
}

func TestJoin(t *testing.T) {
	d := newDesk(t, 2)
	d.up(1, 2)
	d.node(3).SupportsRing = false
	d.node(4).become(isSuspect)
	d.want(d.run(2*time.Second, 1, 2, 3, 4), "RegisterProcess", "RegisterProcess")
	d.node(3).SupportsRing = true
	d.node(4).become(isAlive)
	d.want(d.run(3*time.Second, 1, 2, 3, 4), "Ring", "SettleMove")
	if !d.state.To.Canonical() || len(d.state.To.Members()) != 4 {
		t.Errorf("have %d members", len(d.state.To.Members()))
	}
	// A node whose process in gossip is not the registered one joins no ring, even
	// if it had authority a moment ago.
	d.node(5)
	d.run(100*time.Millisecond, 1, 2, 3, 4, 5)
	d.node(5).Boot++
	d.want(d.run(time.Second, 1, 2, 3, 4))
}

func TestSettledNeedsEveryMember(t *testing.T) {
	d := newDesk(t, 2)
	d.up(1, 2)
	d.node(3)
	for d.state.Settled {
		d.run(tickInterval, 1, 2, 3)
	}
	late := d.request(3)
	for range 40 {
		d.now += tickInterval
		late.Applied, late.SettledEpoch = d.state.Index, 1
		d.ask(late)
		d.ask(d.request(1))
		d.ask(d.request(2))
		if e := d.decide(); e != nil {
			t.Fatalf("have %#v though one has not settled", e)
		}
	}
	d.want(d.run(time.Second, 1, 2, 3), "SettleMove")
}

func TestLeaving(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	leave := func(n byte) Reply {
		q := d.request(n)
		q.Leaving = true
		return d.ask(q)
	}
	leave(2)
	leave(3)
	e := d.decide()
	if l, ok := e.(agreement.Leave); !ok || l.Node != id(2) || l.Epoch != d.state.Epoch+1 {
		t.Fatalf("have %#v, want a Leave", e)
	}
	d.apply(e)
	d.reignState.recordOutcome(e)
	if !leave(2).Granted {
		t.Error("a node that leaves is not granted")
	}
	for range 20 {
		d.now += tickInterval
		leave(2)
		leave(3)
		d.ask(d.request(1))
		if e := d.decide(); e != nil {
			d.apply(e)
			d.reignState.recordOutcome(e)
		}
	}
	if have := d.state.To.Members(); len(have) != 1 || have[0] != id(1) || !d.state.Settled {
		t.Fatalf("have the members %v, want node 1", have)
	}
	// The last member stays, and nodes that left stay out.
	for range 200 {
		d.now += tickInterval
		leave(1)
		leave(2)
		if e := d.decide(); e != nil {
			t.Fatalf("have %#v", e)
		}
	}
	if have := d.state.To.Members(); len(have) != 1 {
		t.Errorf("have the members %v", have)
	}
}

func TestEnding(t *testing.T) {
	tests := []struct {
		name     string
		state    nodeState
		reported bool
		asks     bool
		ended    time.Duration // at the earliest after its last request; 0: never
	}{
		{"gossip says so and it is silent", isGone, false, false, EndingWait},
		{"it left and is silent", isGone, false, false, EndingWait},
		{"nobody reaches it and it is silent", isAlive, true, false, EndingWait},
		{"it is just silent", isAlive, false, false, unreachablePatience},
		{"gossip suspects it", isSuspect, false, false, unreachablePatience},
		{"gossip alone", isGone, false, true, 0},
		{"nobody reaches it though it asks", isAlive, true, true,
			unreachablePatience + EndingWait - 300*time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t, 3)
			d.up(1, 2, 3)
			began := d.now
			granted := d.reignState.records[id(3)].lastGranted
			d.node(3).become(tt.state)
			for d.now < began+10*time.Second && d.state.LastEnded == 0 {
				d.now += tickInterval
				for _, n := range []byte{1, 2, 3} {
					q := d.request(n)
					if tt.reported && n != 3 {
						q.Unreachable = []ring.NodeID{id(3)}
					}
					if n == 3 && !tt.asks {
						continue
					}
					if d.ask(q).Granted && n == 3 {
						granted = d.now
					}
				}
				if e := d.decide(); e != nil {
					d.want([]agreement.Entry{e}, "EndNode")
					d.apply(e)
				}
			}
			switch took := d.now - began; {
			case tt.ended == 0 && d.state.LastEnded != 0:
				t.Errorf("it is ended after %v", took)
			case tt.ended != 0 &&
				(d.state.LastEnded == 0 || took < tt.ended-2*tickInterval-askInterval ||
					took > tt.ended+500*time.Millisecond):
				t.Errorf("it is ended after %v, want %v", took, tt.ended)
			}
			if d.state.LastEnded != 0 && d.now-granted < Validity+Validity/100 {
				t.Errorf("it is ended %v after it was granted authority", d.now-granted)
			}
		})
	}
}

// TestTheWaitIsWholeToTheNanosecond pins the term plus 1 %: no node is ended
// sooner, and no longer wait is needed.
func TestTheWaitIsWholeToTheNanosecond(t *testing.T) {
	const wait = 2020 * time.Millisecond
	for _, reign := range []bool{false, true} {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		if reign {
			d.now += tickInterval
			d.lead(3) // nothing was granted in this reign: the wait starts at its first entry
		} else {
			d.ask(d.request(3))
		}
		start := d.now
		d.node(3).become(isGone)
		for d.now < start+wait {
			if e := d.decide(); e != nil {
				t.Fatalf("in a new reign %v: have %#v after %v", reign, e, d.now-start)
			}
			d.now = min(d.now+tickInterval, start+wait-1)
			if d.now == start+wait-1 {
				if e := d.decide(); e != nil {
					t.Fatalf("in a new reign %v: have %#v after %v", reign, e, d.now-start)
				}
				d.now++
			}
			d.ask(d.request(1))
			d.ask(d.request(2))
		}
		d.want(kind(d.decide()), "EndNode")
	}
}

func TestEndingIsCalledOff(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.node(3).become(isGone)
	d.run(1500*time.Millisecond, 1, 2)
	if have := d.ask(d.request(3)); have.Reason != reasonEnding {
		t.Fatalf("have %+v, want no answer while it is being ended", have)
	}
	d.run(100*time.Millisecond, 1, 2)
	if have := d.ask(d.request(3)); have.Reason != reasonEnding {
		t.Fatalf("have %+v while gossip still calls it failed", have)
	}
	d.node(3).become(isAlive)
	d.want(d.run(3*time.Second, 1, 2, 3))
	if !d.ask(d.request(3)).Granted {
		t.Error("it gets no authority after it is back")
	}
}

func TestEndedIsNotTakenBack(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.node(3).become(isGone)
	var e agreement.Entry
	for e == nil {
		d.now += tickInterval
		d.ask(d.request(1))
		e = d.decide()
	}
	d.want([]agreement.Entry{e}, "EndNode")
	// The entry is pending. The node is back, and the leader's loop has stalled for a long time.
	d.node(3).become(isAlive)
	d.now += time.Minute
	q := d.request(3)
	d.reignState.handleRequest(d.now, d.state, &q)
	d.reignState.detectStall(d.now)
	if have := d.ask(q); have.Granted {
		t.Fatal("it was granted authority while the entry that ends it was under way")
	}
	d.apply(e)
	d.reignState.recordOutcome(e)
	if have := d.ask(q); have.Granted {
		t.Fatal("it was granted authority for the generation that was ended")
	}
}

func TestEndedComesBackWithANewGeneration(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	old := d.request(3)
	d.node(3).become(isGone)
	d.want(d.run(3*time.Second, 1, 2), "EndNode")
	if d.state.To.Rank(id(3)) >= 0 || d.state.Generation(id(3)) != 1 {
		t.Fatal("it is still there")
	}
	d.node(3).become(isAlive)
	if have := d.ask(old); have.Reason != reasonMissedEnd || have.Index != d.state.LastEnded {
		t.Errorf("have %+v, want it to apply first", have)
	}
	old.Applied = d.state.Index
	if have := d.ask(old); have.Reason != reasonGeneration {
		t.Errorf("have %+v for the old generation", have)
	}
	// The same process was cut off and must stay healthy for a while. In the
	// meantime, the ring is rebuilt without it.
	d.want(d.run(9*time.Second, 1, 2, 3), "Ring", "SettleMove")
	if d.inRing(3) {
		t.Fatal("it is back too soon")
	}
	d.want(d.run(3*time.Second, 1, 2, 3), "Ring", "SettleMove")
}

func TestTheOnlyMemberIsNotEnded(t *testing.T) {
	d := newDesk(t, 1)
	d.up(1)
	d.node(1).become(isGone)
	d.want(d.run(time.Minute))
}

func TestAStarvedLeaderTrustsNoSilence(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.node(3).become(isGone)
	d.run(1500*time.Millisecond, 1, 2)
	if !d.reignState.records[id(3)].ending {
		t.Fatal("it is not being ended")
	}
	d.now += 10 * time.Second // the loop stalls
	d.node(2).become(isGone)
	if e := d.decide(); e != nil {
		t.Fatalf("have %#v right after the loop stood still", e)
	}
	d.node(2).become(isAlive)
	if have := d.ask(d.request(3)); !have.Granted {
		t.Errorf("have %+v for the request that waited unread", have)
	}
	d.node(3).become(isAlive)
	d.want(d.run(5*time.Second, 1, 2, 3))
}

func TestAHoleIsMendedAfterAWhile(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.node(3).become(isGone)
	d.want(d.run(2500*time.Millisecond, 1, 2), "EndNode")
	d.want(d.run(4*time.Second, 1, 2))
	d.want(d.run(2*time.Second, 1, 2), "Ring", "SettleMove")
}

func TestNoRingWhileAMemberHasNoAuthority(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.run(Validity+Validity/10, 1, 2) // 3 is silent, and gossip says that it is alive
	d.node(4)
	d.want(d.run((unreachablePatience-Validity)/2, 1, 2, 4), "RegisterProcess")
	d.want(d.run(time.Second, 1, 2, 3, 4), "Ring", "SettleMove")
}

// TestAGrantIsJudgedAgain: a reason for a refusal appears during the confirmation.
func TestAGrantIsJudgedAgain(t *testing.T) {
	tests := []struct {
		name  string
		first func(d *desk)
		want  string
	}{
		{"nothing", func(*desk) {}, ""},
		{"another node was ended", func(d *desk) { d.apply(agreement.EndNode{Node: id(2)}) }, reasonMissedEnd},
		{"it has another process",
			func(d *desk) { d.apply(agreement.RegisterProcess{Node: id(3), Boot: 9}) }, reasonReplaced},
		{"it is being ended", func(d *desk) { d.reignState.records[id(3)].ending = true }, reasonEnding},
		{"it gave up", func(d *desk) {
			q := d.request(3)
			q.GivingUp = true
			d.ask(q)
		}, reasonGaveUp},
	}
	for _, tt := range tests {
		d := newDesk(t, 3)
		d.up(1, 2, 3)
		q := d.request(3)
		if have := d.reignState.handleRequest(d.now, d.state, &q); have.Reason != "" {
			t.Fatalf("have %+v", have)
		}
		tt.first(d)
		if have := d.reignState.grant(d.now, d.state, &q); have.Reason != tt.want || have.Granted != (tt.want == "") {
			t.Errorf("%s: have %+v, want %q", tt.name, have, tt.want)
		}
	}
}

// nodeState is what gossip says of a node.
type nodeState struct{ alive, gone bool }

var (
	isAlive   = nodeState{alive: true}
	isSuspect = nodeState{}
	isGone    = nodeState{gone: true}
)

func (n *Node) become(s nodeState) { n.Alive, n.Gone = s.alive, s.gone }
