package authority

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestQuickRestart(t *testing.T) {
	tests := []struct {
		name  string
		prior func(d *desk)
		node  byte
		after time.Duration // the earliest time at which the new process is registered
	}{
		{"its authority has to run out", func(*desk) {}, 2, EndingWait},
		{"the leader itself", func(d *desk) { d.reignState.boot++ }, 1, 0},
		{"it gave up", func(d *desk) {
			q := d.request(2)
			q.GivingUp = true
			if have := d.ask(q); have.Reason != reasonGaveUp {
				d.t.Errorf("have %+v", have)
			}
			q.GivingUp = false
			if have := d.ask(q); have.Reason != reasonGaveUp {
				d.t.Errorf("have %+v for a request that was on its way", have)
			}
		}, 2, 0},
		{"a new leader knows of no grant", func(d *desk) { d.lead(3) }, 2, EndingWait},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t, 3)
			d.up(1, 2, 3)
			d.ask(d.request(tt.node))
			tt.prior(d)
			began, old := d.now, d.request(tt.node)
			d.node(tt.node).Boot++
			healthy := []byte{1, 2, 3}
			for d.state.Boot(id(tt.node)) == old.Boot && d.now < began+time.Minute {
				for _, e := range d.run(tickInterval, healthy...) {
					d.want(kind(e), "RegisterProcess")
				}
			}
			if took := d.now - began; took < tt.after || took > tt.after+500*time.Millisecond {
				t.Errorf("it was registered after %v, want %v", took, tt.after)
			}
			if d.cried > 0 {
				t.Error("the new process was taken for a copy")
			}
			behind := d.request(tt.node)
			behind.Applied = d.state.Processes[id(tt.node)].Index - 1
			if have := d.ask(behind); have.Reason != reasonBootBehind || have.Index != behind.Applied+1 {
				t.Errorf("have %+v before it has applied that", have)
			}
			if have := d.ask(d.request(tt.node)); !have.Granted {
				t.Errorf("have %+v after that", have)
			}
			old.Applied = d.state.Index
			if have := d.ask(old); have.Granted {
				t.Error("the old process was granted authority")
			}
			d.want(d.run(5*time.Second, healthy...))
		})
	}
}

// TestARejectedRegistrationHoldsUpNothing: a process that can't be registered is
// not proposed, so that others are registered and ended as ever.
func TestARejectedRegistrationHoldsUpNothing(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.alter = map[byte]func(*Request){4: func(q *Request) { q.Release = strings.Repeat("x", agreement.MaxRelease+1) }}
	d.node(4)
	d.run(5*time.Second, 1, 2, 3, 4)
	if have := d.ask(d.request(4)); have.Reason != reasonRejected {
		t.Errorf("have %+v", have)
	}

	d.node(5)
	d.node(3).become(isGone)
	d.run(30*time.Second, 1, 2, 4, 5)
	if s := d.state; s.InRing(id(3)) || !s.InRing(id(5)) || s.Boot(id(4)) != 0 {
		t.Errorf("the ring is %v", s.To.Members())
	}
	expect.Equal(t, d.cried, 1, "alarms")

	// Another process of the node can be registered.
	d.alter = nil
	d.node(4).Boot++
	d.run(5*time.Second, 1, 2, 4, 5)
	expect.Equal(t, d.state.InRing(id(4)), true, "the node with a shorter release is in the ring")
}

func TestClone(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	clone := func() Reply {
		q := d.request(2)
		q.Boot = 999
		return d.ask(q)
	}
	d.ask(d.request(2))
	clone()
	for range 200 {
		d.now += tickInterval
		for _, n := range []byte{1, 2, 3} {
			if !d.ask(d.request(n)).Granted {
				t.Fatalf("node %d is not granted", n)
			}
		}
		if have := clone(); have.Reason != reasonClone {
			t.Fatalf("have %+v", have)
		}
		if e := d.decide(); e != nil {
			t.Fatalf("have %#v", e)
		}
	}
	if d.cried < 1 || d.cried > 2 {
		t.Errorf("the operator was alerted %d times in ten seconds, want once or twice", d.cried)
	}
	// A copy of the leader's own directory gets nothing, even if the leader's own
	// process is silent.
	d.now += time.Minute
	q := d.request(1)
	q.Boot = 998
	if have := d.ask(q); have.Reason != reasonClone {
		t.Errorf("have %+v", have)
	}
	if e := d.decide(); e != nil {
		t.Errorf("have %#v", e)
	}
	// Once the registered process stops asking, the copy takes its place, permanently.
	for range 100 {
		d.now += tickInterval
		d.ask(d.request(1))
		d.ask(d.request(3))
		clone()
		if e := d.decide(); e != nil {
			d.want(kind(e), "RegisterProcess")
			d.apply(e)
			d.reignState.recordOutcome(e)
		}
	}
	if d.state.Boot(id(2)) != 999 {
		t.Fatal("the copy is not registered")
	}
	d.now += time.Minute
	if have := d.ask(d.request(2)); have.Reason != reasonReplaced {
		t.Errorf("have %+v, want it refused for ever", have)
	}
	if e := d.decide(); e != nil {
		t.Errorf("have %#v", e)
	}
}

// TestNobodyIsEndedInAReignsFirstTerm: not even a node that gave up its authority is ended.
func TestNobodyIsEndedInAReignsFirstTerm(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	d.now += tickInterval
	d.lead(3)
	q := d.request(3)
	q.GivingUp = true
	d.ask(q)
	d.node(3).become(isGone)
	d.want(d.run(EndingWait-tickInterval, 1, 2))
	d.want(d.run(2*tickInterval, 1, 2), "EndNode")
}

// TestWhoGaveUpIsEndedAtOnce: the leader need not wait until the node's authority expires.
func TestWhoGaveUpIsEndedAtOnce(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	q := d.request(3)
	q.GivingUp = true
	d.ask(q)
	d.node(3).become(isGone)
	d.want(d.run(silencePatience+2*tickInterval, 1, 2), "EndNode")
}

// TestAProcessThatAsksIsNotReplaced: not even if it is refused because it is behind.
func TestAProcessThatAsksIsNotReplaced(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	for range 200 {
		d.now += tickInterval
		behind, clone := d.request(2), d.request(2)
		behind.Applied, clone.Boot = 0, 999
		d.ask(d.request(1))
		d.ask(behind)
		d.ask(clone)
		if e := d.decide(); e != nil {
			t.Fatalf("have %#v", e)
		}
	}
}

// TestNothingIsGrantedToAProcessThatIsBeingReplaced: the entry is pending when
// the old process asks again.
func TestNothingIsGrantedToAProcessThatIsBeingReplaced(t *testing.T) {
	d := newDesk(t, 3)
	d.up(1, 2, 3)
	old := d.request(2)
	d.node(2).Boot++
	var e agreement.Entry
	for e == nil {
		d.now += tickInterval
		for _, n := range []byte{1, 2, 3} {
			d.ask(d.request(n))
		}
		e = d.decide()
	}
	d.want(kind(e), "RegisterProcess")
	if have := d.ask(old); have.Reason != reasonReplacing {
		t.Errorf("have %+v", have)
	}
	d.apply(e)
	d.reignState.recordOutcome(e)
	if have := d.ask(d.request(2)); !have.Granted {
		t.Errorf("have %+v", have)
	}
}
