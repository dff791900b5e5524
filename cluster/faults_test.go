package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// numNotes is how many entries the clients write.
const numNotes = 3

// The rules and entries beside them under faults, modelled as a register with a version each.
type (
	registerInput struct {
		read    bool
		value   int
		ifMatch int64
		entry   int  // number of the entry to write, from 1; 0: the rules
		remove  bool // the entry
	}
	registerOutput struct {
		register
		outcome outcomeOfWrite
	}
	register struct {
		version int64
		value   int
		entries int64         // version of the entries
		notes   [numNotes]int // what each entry says; 0: there is none
	}
	outcomeOfWrite uint8
)

const (
	written outcomeOfWrite = iota
	conflicted
	notThere // there is no such entry to remove
	notMade
	notKnown
)

func stepRegister(state, input, output any) (bool, any) {
	s, in, out := state.(register), input.(registerInput), output.(registerOutput)
	if in.read {
		return out.register == s, s
	}

	fits, next := s.write(in)
	isNumbered := out.version == next.version
	if in.entry > 0 {
		isNumbered = out.entries == next.entries
	}
	switch {
	case out.outcome == written:
		return fits && isNumbered, next
	case out.outcome == conflicted, out.outcome == notThere:
		return !fits, s
	case out.outcome == notMade:
		return true, s
	case fits: // unknown, assuming it was made; if it was not, it takes effect after the end of the history
		return true, next
	}
	return true, s
}

// write returns what s is after a write, and whether that can be made.
func (s register) write(in registerInput) (fits bool, next register) {
	next = s
	if in.entry == 0 {
		next.version++
		next.value = in.value
		return in.ifMatch == 0 || in.ifMatch == s.version, next
	}
	next.entries++
	next.notes[in.entry-1] = in.value
	return !in.remove || s.notes[in.entry-1] != 0, next
}

var registerModel = porcupine.Model{
	Init:              func() any { return register{version: 1, value: 5} },
	Step:              stepRegister,
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
}

// history is what clients saw.
type history struct {
	mu    sync.Mutex // guards the fields below
	start time.Time
	ops   []porcupine.Operation
}

func (h *history) add(client int, call time.Time, in registerInput, out registerOutput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op := porcupine.Operation{ClientId: client, Input: in, Output: out,
		Call: int64(call.Sub(h.start)), Return: int64(time.Since(h.start))}
	if out.outcome == notKnown {
		op.Return = math.MaxInt64
	}
	h.ops = append(h.ops, op)
}

// client reads and writes through random running nodes until ctx ends. It is
// one porcupine client until an outcome is unknown. Then it continues as
// another.
func (w *world) client(ctx context.Context, h *history, number int, chance *rand.Rand) {
	known := int64(0)
	for i := 0; ctx.Err() == nil; i++ {
		n := w.nodes[chance.IntN(len(w.nodes))]
		c := n.c.Load()
		if c == nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		call := time.Now()
		short, cancel := context.WithTimeout(context.Background(), time.Duration(1+chance.IntN(4))*time.Second)
		if chance.IntN(3) == 0 {
			if c.CatchUp(short) == nil {
				s := readRegister(c.State())
				known = s.version
				h.add(number, call, registerInput{read: true}, registerOutput{register: s})
			}
		} else if chance.IntN(2) == 0 {
			in := registerInput{entry: 1 + chance.IntN(numNotes), value: 1000*(number%1000) + i + 1}
			in.remove = chance.IntN(3) == 0
			if in.remove {
				in.value = 0
			}
			v, _, err := c.WriteEntries(short, noteChange(in))
			out := registerOutput{register: register{entries: v}, outcome: outcomeOf(err)}
			h.add(number, call, in, out)
			if out.outcome == notKnown {
				number += 1000
			}
		} else {
			in := registerInput{value: 1000*(number%1000) + i}
			if chance.IntN(2) == 0 {
				in.ifMatch = known
			}
			v, err := c.Write(short, changeTo(in.value+1), WriteOptions{IfMatch: in.ifMatch})
			in.value++
			out := registerOutput{register: register{version: v}, outcome: outcomeOf(err)}
			h.add(number, call, in, out)
			if out.outcome == notKnown {
				number += 1000
			}
			if err == nil {
				known = v
			}
		}
		cancel()
		time.Sleep(time.Duration(chance.IntN(50)) * time.Millisecond)
	}
}

// noteChange returns the change of an entry that in asks for.
func noteChange(in registerInput) []EntryChange {
	changes := denial(fmt.Sprint("user", in.entry), 0, in.remove)
	changes[0].Entry.Note = fmt.Sprint(in.value)
	return changes
}

// readRegister returns what a client reads of a state.
func readRegister(s *agreement.State) register {
	doc, v := s.History.Current()
	r := register{version: v.Number, value: limitOf(doc), entries: s.Entries.Version()}
	for i := range r.notes {
		id := noteChange(registerInput{entry: i + 1})[0].Entry.ID()
		if e := s.Entries.Get(id); e != nil {
			r.notes[i], _ = strconv.Atoi(e.Note)
		}
	}
	return r
}

func limitOf(doc *document.Document) int { return int(doc.Rules[0].Limits[0].Limit) }

func outcomeOf(err error) outcomeOfWrite {
	switch {
	case err == nil:
		return written
	case errors.Is(err, rules.ErrConflict):
		return conflicted
	case errors.Is(err, entries.ErrNotFound):
		return notThere
	case errors.Is(err, ErrOutcomeUnknown):
		return notKnown
	case errors.Is(err, ErrLeaderUnavailable):
		return notMade
	}
	return notKnown // the node was closed in the meantime
}

// fault injects a fault for some seconds and undoes it.
func (w *world) fault(chance *rand.Rand) {
	n := w.nodes[chance.IntN(len(w.nodes))]
	if leader := w.leader(); leader != nil && chance.IntN(3) > 0 {
		n = leader
	}
	long := time.Duration(500+chance.IntN(4000)) * time.Millisecond
	switch chance.IntN(5) {
	case 0:
		w.isolate(n)
		time.Sleep(long)
		w.rejoin(n)
	case 1:
		n.crash()
		time.Sleep(long)
		n.run()
	case 2:
		w.net.Freeze(n.ip)
		time.Sleep(long)
		w.net.Thaw(n.ip)
	case 3:
		n.store.hung.Store(true)
		time.Sleep(long)
		n.store.hung.Store(false)
	case 4:
		other := w.nodes[chance.IntN(len(w.nodes))]
		if other != n {
			w.net.Cut(n.ip, other.ip)
			time.Sleep(long)
			w.net.Heal(n.ip, other.ip)
		}
	}
}

// TestG9_WritesAreLinearizableUnderFaults: clients write rules and entries
// through any node while leaders fail.
func TestG9_WritesAreLinearizableUnderFaults(t *testing.T) {
	many(t, *seeds/10, func(t *testing.T, chance *rand.Rand) {
		w := newWorld(t)
		defer w.end()
		nodes := w.founded(3 + 2*chance.IntN(2))
		stop := w.watchLeaders()
		h := &history{start: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for i := range 4 {
			own := rand.New(rand.NewPCG(chance.Uint64(), 2))
			clients.Go(func() { w.client(ctx, h, i, own) })
		}
		for range 8 {
			time.Sleep(time.Duration(chance.IntN(3000)) * time.Millisecond)
			w.fault(chance)
		}
		w.net.HealAll()
		time.Sleep(3 * time.Second)
		cancel()
		clients.Wait()
		stop()
		w.oneCluster(nodes...)
		// Once connected again, all nodes agree.
		call := time.Now()
		for i, n := range nodes {
			w.until(20*time.Second, "reading through "+n.name,
				func() bool { return n.c.Load().CatchUp(t.Context()) == nil })
			h.add(900+i, call, registerInput{read: true}, registerOutput{register: readRegister(n.c.Load().State())})
		}
		made := 0
		for _, op := range h.ops {
			if out := op.Output.(registerOutput); out.outcome == written && !op.Input.(registerInput).read {
				made++
			}
		}
		if made < 50 {
			t.Errorf("only %d writes of %d operations were made", made, len(h.ops))
		}
		result, _ := porcupine.CheckOperationsVerbose(registerModel, h.ops, time.Minute)
		expect.Equal(t, result, porcupine.Ok, "%d operations, of which %d writes", len(h.ops), made)
	})
}

// TestAHungStoreEndsLeadership: the other nodes elect a leader and continue.
func TestAHungStoreEndsLeadership(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		hung := w.aLeader()
		hung.store.hung.Store(true)
		begun := time.Now()
		var other *node
		w.until(10*time.Second, "leader whose store works", func() bool {
			other = w.leader()
			return other != nil && other != hung
		})
		t.Logf("after %s", time.Since(begun))
		other.mustWrite(9)
		hung.store.hung.Store(false)
		w.until(20*time.Second, "the node whose store hung to catch up", func() bool {
			return rulesVersion(hung.c.Load().State()) == 2
		})
		w.ready(nodes...)
	})
}

// TestAStoreThatIsWellAgainCatchesUpSoon: no matter how long a node could store
// nothing, it soon receives what it missed.
func TestAStoreThatIsWellAgainCatchesUpSoon(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		time.Sleep(5 * time.Second)
		leader, n := w.aLeader(), nodes[0]
		if n == leader {
			n = nodes[1]
		}
		for i := range 4 { // at different moments of Raft's back-off
			n.store.full.Store(true)
			leader.mustWrite(10 + i)
			time.Sleep(time.Duration(40+3*i) * time.Second)
			n.store.full.Store(false)
			w.until(2*time.Second, "the node whose store failed to catch up", func() bool {
				return rulesVersion(n.c.Load().State()) == int64(i+2)
			})
			time.Sleep(time.Minute)
		}
	})
}

// TestTheLeadGoesToWhoStores: the lead is not transferred to a follower whose
// store hangs, because Raft would propose nothing in the meantime.
func TestTheLeadGoesToWhoStores(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		leader := w.aLeader()
		hung := nodes[0]
		if hung == leader {
			hung = nodes[1]
		}
		hung.store.hung.Store(true)
		time.Sleep(6 * time.Second)
		for i := range 8 {
			before := w.aLeader()
			before.c.Load().tracker.transferLead(t.Context())
			var next *node
			w.until(500*time.Millisecond, "another leader", func() bool {
				next = w.leader()
				return next != nil && next != before
			})
			began := time.Now()
			next.mustWrite(10 + i)
			if took := time.Since(began); took > time.Second {
				t.Errorf("a write took %v", took)
			}
			time.Sleep(2 * time.Second)
		}
		hung.store.hung.Store(false)
		w.ready(nodes...)
	})
}

// TestABrokenLinkToTheLeaderCostsAHop: a node that can't reach the leader
// writes and has authority through another node.
func TestABrokenLinkToTheLeaderCostsAHop(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		leader := w.aLeader()
		n := nodes[0]
		if n == leader {
			n = nodes[1]
		}
		w.net.Cut(n.ip, leader.ip)
		time.Sleep(10 * time.Second)
		if w.aLeader() != leader {
			t.Skip("another node leads now")
		}
		if !n.c.Load().Authority() {
			t.Errorf("%s has no authority", n.name)
		}
		// The node can't see its own write, because Raft has no second path. But the write is made.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := n.c.Load().Write(ctx, changeTo(9), WriteOptions{}); err != nil &&
			!errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("have %v", err)
		}
		expect.Equal(t, rulesVersion(leader.c.Load().State()), 2, "version")
	})
}

// TestALongCutHealsSoon: the length of a cut does not affect how soon the node is back afterwards.
func TestALongCutHealsSoon(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		n := nodes[0]
		if n == w.aLeader() {
			n = nodes[1]
		}
		w.isolate(n)
		time.Sleep(4 * time.Minute)
		other := w.aLeader()
		other.mustWrite(9)
		w.rejoin(n)
		begun := time.Now()
		w.until(30*time.Second, "authority",
			func() bool { return n.c.Load().Authority() && rulesVersion(n.c.Load().State()) == 2 })
		took := time.Since(begun)
		t.Logf("connected after %s", took)
		if took > 5*time.Second {
			t.Errorf("connected only after %s", took)
		}
	})
}

func TestWithoutAMajorityNothingIsWritten(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.founded(3)
		nodes[1].crash()
		nodes[2].crash()
		time.Sleep(5 * time.Second)
		begun := time.Now()
		_, err := nodes[0].c.Load().Write(context.Background(), changeTo(9), WriteOptions{})
		if !errors.Is(err, ErrLeaderUnavailable) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("have %v, want ErrLeaderUnavailable", err)
		}
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("it took %s", took)
		}
		if nodes[0].c.Load().Authority() {
			t.Error("it has authority")
		}
		if err := nodes[0].c.Load().CatchUp(context.Background()); !errors.Is(err, ErrLeaderUnavailable) {
			t.Errorf("have %v, want ErrLeaderUnavailable", err)
		}
	})
}
