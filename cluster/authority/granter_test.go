package authority

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
)

// sequence is a log shared by several leaders, of which only one may write at a time.
type sequence struct {
	mu      sync.Mutex // guards the fields below
	state   *agreement.State
	leader  int
	entries []agreement.Entry
	took    time.Duration // how long a commit or a confirmation takes
	held    chan struct{} // if not nil: outcomes are reported once it is closed
	lost    bool          // nothing is confirmed
	proofs  int           // confirmations
	boot    chan struct{} // if not nil: the outcome of a Boot is reported once it is closed
	ruled   uint64        // the index as of which the newest rules are in force
}

func (s *sequence) granter(t *testing.T, n int) *Granter {
	t.Helper()
	g := newTestGranter(GranterConfig{
		Self: id(byte(n)), Boot: 100 + uint64(n), BootstrapExpect: 1,
		State: func() *agreement.State {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.state
		},
		Propose: func(ctx context.Context, e agreement.Entry) (agreement.Result, error) { return s.propose(ctx, n, e) },
		Confirm: func(ctx context.Context, reign uint64) error { return s.confirm(ctx, n, reign) },
		RulesIndex: func() uint64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.ruled
		},
		Nodes: func() []Node {
			return []Node{{
				Member: agreement.Member{ID: id(1)}, Boot: 101, Alive: true, SupportsRing: true,
			}}
		},
	})
	t.Cleanup(func() { g.Close() })
	return g
}

func (s *sequence) propose(ctx context.Context, n int, e agreement.Entry) (agreement.Result, error) {
	s.mu.Lock()
	took, boot := s.took, s.boot
	s.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return agreement.Result{}, ctx.Err()
	}
	s.mu.Lock()
	if s.leader != n {
		s.mu.Unlock()
		return agreement.Result{}, errors.New("not the leader")
	}
	b, _ := agreement.ThisBuild.Encode(e)
	var result agreement.Result
	s.state, result = s.state.Apply(s.state.Index+1, b)
	s.entries = append(s.entries, e)
	held := s.held
	s.mu.Unlock()
	if held != nil {
		<-held
	}
	if _, ok := e.(agreement.RegisterProcess); ok && boot != nil {
		<-boot
	}
	return result, nil
}

func (s *sequence) confirm(ctx context.Context, n int, reign uint64) error {
	s.mu.Lock()
	took, held, lost := s.took, s.held, s.lost
	confirmed := s.leader == n && s.state.Reign == reign && !lost
	s.proofs++
	s.mu.Unlock()
	if !confirmed {
		return errors.New("not the leader")
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	if held != nil {
		<-held
	}
	return nil
}

func (s *sequence) confirmations() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proofs
}

func (s *sequence) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *sequence) count(same func(agreement.Entry) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, e := range s.entries {
		if same(e) {
			n++
		}
	}
	return n
}

func newSequence() *sequence {
	s := &sequence{state: agreement.New(), leader: 1, took: 3 * time.Millisecond}
	for _, e := range []agreement.Entry{
		agreement.FoundCluster{Cluster: agreement.ClusterID{1}, SigningKey: make([]byte, 32)},
		agreement.RegisterProcess{Node: id(1), Boot: 101}, agreement.RegisterProcess{Node: id(2), Boot: 102},
	} {
		b, _ := agreement.ThisBuild.Encode(e)
		s.state, _ = s.state.Apply(s.state.Index+1, b)
	}
	return s
}

func (s *sequence) request(n byte) Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Request{Node: id(n), Boot: 100 + uint64(n), Applied: s.state.Index}
}

func TestADeposedLeaderGrantsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence()
		one, two := s.granter(t, 1), s.granter(t, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if have := one.Answer(ctx, s.request(1)); have.Granted || have.Reason != reasonNotLeading {
			t.Errorf("have %+v before it leads", have)
		}
		one.StartLeading()
		if have := one.Answer(ctx, s.request(1)); !have.Granted {
			t.Fatalf("have %+v from the leader", have)
		}
		s.mu.Lock()
		s.leader = 2 // node 1 doesn't notice
		s.mu.Unlock()
		two.StartLeading()
		if have := two.Answer(ctx, s.request(1)); !have.Granted {
			t.Fatalf("have %+v from the new leader", have)
		}
		if have := one.Answer(ctx, s.request(1)); have.Granted {
			t.Error("a deposed leader granted")
		}
		if _, err := one.CommittedIndex(ctx); !errors.Is(err, ErrNotLeading) {
			t.Errorf("have %v from a deposed leader", err)
		}
		index, err := two.CommittedIndex(ctx)
		if err != nil || index != s.state.Index {
			t.Errorf("have %d, %v, want %d", index, err, s.state.Index)
		}
	})
}

// leadingGranter returns a sequence and a granter that has led it for a second.
func leadingGranter(t *testing.T) (*sequence, *Granter) {
	t.Helper()
	s := newSequence()
	g := s.granter(t, 1)
	g.StartLeading()
	time.Sleep(time.Second)
	return s, g
}

// TestALateOutcomeOfAnEarlierReign: the leader learns of its confirmation only
// after it has been deposed.
func TestALateOutcomeOfAnEarlierReign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := leadingGranter(t)
		s.mu.Lock()
		s.held = make(chan struct{})
		held := s.held
		s.mu.Unlock()
		replies := make(chan Reply, 1)
		var group sync.WaitGroup
		group.Go(func() { replies <- g.Answer(t.Context(), s.request(1)) })
		time.Sleep(time.Second)
		g.StopLeading()
		if have := <-replies; have.Granted {
			t.Error("granted by one who follows")
		}
		group.Go(func() { replies <- g.Answer(t.Context(), s.request(2)) })
		if have := <-replies; have.Granted {
			t.Error("granted by one who follows")
		}
		close(held)
		group.Wait()
	})
}

// TestAMarkThatIsNotTheLast: another leader led before this leader learned the
// outcome of its first entry.
func TestAMarkThatIsNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence()
		held := make(chan struct{})
		s.held = held
		g := s.granter(t, 1)
		g.StartLeading()
		time.Sleep(time.Second)
		s.mu.Lock()
		s.held = nil
		b, _ := agreement.ThisBuild.Encode(agreement.Reign{Number: 5})
		s.state, _ = s.state.Apply(s.state.Index+1, b)
		s.mu.Unlock()
		close(held)
		synctest.Wait()
		if leading(g) {
			t.Error("it leads with a mark that isn't the last")
		}
		time.Sleep(time.Second)
		if !leading(g) {
			t.Error("it does not start over")
		}
	})
}

// TestOneConfirmationForAllThatWait: the number of confirmations does not
// depend on the number of requests.
func TestOneConfirmationForAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := leadingGranter(t)
		before, began := s.confirmations(), time.Now()
		if _, err := g.CommittedIndex(t.Context()); err != nil || time.Since(began) > s.took {
			t.Errorf("the first took %v: %v", time.Since(began), err)
		}
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() {
				for range 40 {
					if _, err := g.CommittedIndex(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		took := time.Since(began)
		if n := s.confirmations() - before; n < 40 || n > int(took/(100*time.Millisecond))+1 {
			t.Errorf("%d confirmations in %v", n, took)
		}
	})
}

// TestAConfirmationThatBeganBeforeDoesNotCount: a request that arrives during a
// confirmation waits for the next one.
func TestAConfirmationThatBeganBeforeDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := leadingGranter(t)
		s.mu.Lock()
		s.took = 400 * time.Millisecond
		s.mu.Unlock()
		var group sync.WaitGroup
		began := time.Now()
		group.Go(func() { g.Answer(t.Context(), s.request(1)) })
		time.Sleep(300 * time.Millisecond)
		group.Go(func() {
			if have := g.Answer(t.Context(), s.request(2)); !have.Granted || time.Since(began) < 800*time.Millisecond {
				t.Errorf("have %+v after %v", have, time.Since(began))
			}
		})
		group.Wait()
	})
}

func TestAFailedProposalBeginsANewReign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := leadingGranter(t)
		s.mu.Lock()
		s.took = time.Hour
		s.mu.Unlock()
		began := time.Now()
		if have := g.Answer(t.Context(), s.request(1)); have.Granted || time.Since(began) != proposeTimeout {
			t.Errorf("have %+v after %v", have, time.Since(began))
		}
		s.mu.Lock()
		s.took = time.Millisecond
		s.mu.Unlock()
		isReign := func(e agreement.Entry) bool { _, ok := e.(agreement.Reign); return ok }
		before := s.count(isReign)
		time.Sleep(time.Second)
		if have := g.Answer(t.Context(), s.request(1)); !have.Granted || s.count(isReign) != before+1 {
			t.Errorf("have %+v in reign %d", have, s.count(isReign))
		}
	})
}

// TestTwoOutcomesAndOneFails: a proposal's outcome arrives after a failed
// confirmation has ended the reign.
func TestTwoOutcomesAndOneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := leadingGranter(t)
		isBoot := func(e agreement.Entry) bool { _, ok := e.(agreement.RegisterProcess); return ok }
		s.set(func() { s.boot = make(chan struct{}) })
		if have := g.Answer(t.Context(), s.request(3)); have.Reason != reasonRegister {
			t.Fatalf("have %+v", have)
		}
		time.Sleep(2 * tickInterval)
		if s.count(isBoot) != 1 {
			t.Fatal("the new node's process is not registered")
		}
		s.set(func() { s.lost = true })
		if have := g.Answer(t.Context(), s.request(1)); have.Granted {
			t.Fatal("granted without a confirmation")
		}
		close(s.boot)
		synctest.Wait()
		s.set(func() { s.lost = false })
		time.Sleep(time.Second)
		if have := g.Answer(t.Context(), s.request(1)); !have.Granted {
			t.Errorf("have %+v in the next reign", have)
		}
	})
}

// TestAFailedReignRefusesAtOnce: until the next reign begins, requests are
// refused, not queued.
func TestAFailedReignRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := leadingGranter(t)
		s.set(func() { s.lost = true })
		if have := g.Answer(t.Context(), s.request(1)); have.Granted {
			t.Fatal("granted without a confirmation")
		}

		failedAt := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if have := g.Answer(ctx, s.request(1)); have.Reason != reasonNotLeading {
			t.Errorf("have %+v, want %q", have, reasonNotLeading)
		}
		expect.Equal(t, g.AwaitMajority(ctx, 1), false, "a majority has applied the entry")
		expect.Equal(t, time.Since(failedAt), 0, "wait for two refusals")
	})
}

// leading reports whether g's first entry has been applied.
func leading(g *Granter) bool {
	synctest.Wait()
	leads := g.reign != nil && g.reign.observed != nil
	// The loop must accept the request before it can change the fields read here.
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	g.Answer(ctx, Request{})
	return leads
}

// TestFollowed: AwaitMajority returns when a majority of the ring has applied
// an index. The granter forgets callers that have stopped waiting.
func TestFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence()
		g := s.granter(t, 1)
		g.StartLeading()
		for range 40 { // the first ring
			g.Answer(t.Context(), s.request(1))
			time.Sleep(250 * time.Millisecond)
		}
		r := s.request(1)
		index := r.Applied + 2
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if g.AwaitMajority(ctx, index) {
				t.Fatal("no node has applied it")
			}
			cancel()
		}
		g.Answer(t.Context(), r)
		expect.Equal(t, len(g.reign.awaitingMajority), 0, "requests are left whose callers have stopped waiting")
		told := make(chan bool, 1)
		go func() { told <- g.AwaitMajority(t.Context(), index) }()
		synctest.Wait()
		r.Applied = index
		g.Answer(t.Context(), r)
		if !<-told {
			t.Error("the caller gets no confirmation")
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence()
		s.took = time.Hour
		g := s.granter(t, 1)
		g.StartLeading()
		var group sync.WaitGroup
		group.Go(func() {
			if have := g.Answer(t.Context(), s.request(1)); have.Granted {
				t.Error("granted")
			}
		})
		synctest.Wait()
		g.Close()
		group.Wait()
		g.StartLeading()
		g.StopLeading()
		if leading(g) || g.Answer(t.Context(), s.request(1)).Granted {
			t.Error("it leads after Close")
		}
		g.Close()
	})
}
