package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/ring"
)

const (
	// promiseTimeout bounds one step of a founding: all of its calls together.
	promiseTimeout = 2 * time.Second
	// deferTimeout is how long a proposer holds back after hearing of one with a
	// lower ID, or giving up its own attempt during the calls.
	deferTimeout = 5 * time.Second
	// seedPatience is how long a node that may found a cluster by itself first
	// looks for the nodes in --join.
	seedPatience = 5 * time.Second
	// remindInterval is how often a waiting node logs what it waits for.
	remindInterval = 30 * time.Second
)

// founder is this node's part in founding a cluster.
type founder struct {
	*core
	departed atomic.Pointer[error] // this node left or was removed, and was started again; nil if not
	// joinError is why this build can't join the cluster that last invited it; nil
	// if no cluster has, or if it can join.
	joinError atomic.Pointer[error]

	// mu guards promise. It is held while a promise, or the first entry of Raft's
	// log, is written, so that a promise and a decision exclude each other.
	mu      sync.Mutex
	promise promise // as on disk

	waitReason atomic.Pointer[error] // why there was no cluster at the last step; nil before the first step
}

// clearHalfFounded resets the store after a crash in the middle of
// raft.BootstrapCluster, which leaves a term of 1 and no entry: Raft would
// refuse to bootstrap on it. Only a proposer that held all promises, or a node
// that founds a cluster by itself, can be in that state. A node that was added
// to an existing cluster may also have a term and no entry, but its promise is
// not decided.
func (f *founder) clearHalfFounded() error {
	s := f.config.Store
	last, err := s.Logs().LastIndex()
	if err != nil {
		return fmt.Errorf("read Raft's log: %w", err)
	}

	term, err := s.Stable().GetUint64([]byte(raftTerm))
	if err != nil {
		return nil // no term is stored; Raft itself will report any other error
	}

	foundsAlone := f.config.foundsAlone() && f.identity.Load().Cluster == [16]byte{}
	isFounder := f.promise.Decided || foundsAlone
	if !isFounder || term != 1 || last != 0 {
		return nil
	}

	snapshots, err := s.Snapshots().List()
	if err != nil || len(snapshots) > 0 {
		return err
	}
	if err := s.Stable().SetUint64([]byte(raftTerm), 0); err != nil {
		return fmt.Errorf("undo an unfinished founding: %w", err)
	}

	return nil
}

// bootstrap writes the first entry of Raft's log: these nodes form the cluster.
func (f *founder) bootstrap(founders []ring.NodeID) error {
	var conf raft.Configuration
	known := *f.nodeAddresses.Load()
	for i, id := range founders {
		address := known[id]
		if id == f.config.Self.ID {
			address = f.config.Self.PeerAddress()
		}

		if address == "" {
			return fmt.Errorf("found a cluster: the address of node %s is not known: %w", id, ErrNotFound)
		}

		s := raft.Server{Suffrage: raft.Voter, ID: raftio.ServerID(id), Address: raft.ServerAddress(address)}
		if i >= maxVoters {
			s.Suffrage = raft.Nonvoter // a few voters are enough
		}

		conf.Servers = append(conf.Servers, s)
	}

	if err := f.raft.Load().BootstrapCluster(conf).Error(); err != nil {
		return errors.Join(fmt.Errorf("found a cluster: %w", err), f.clearHalfFounded())
	}

	f.config.Logger.Info("this node has founded a cluster", "nodes", len(founders))
	return nil
}

// foundCluster is the loop of a node whose Raft is empty. It ends once Raft has data.
func (f *founder) foundCluster() {
	l := foundingLoop{founder: f, lastLogged: time.Now()}
	f.loop(f.config.Timings.Founding, f.gossipChanged, l.step)
}

// foundingLoop is what foundCluster keeps between its steps.
type foundingLoop struct {
	*founder
	heldBackSince time.Time // when this node last began to hold back
	lastLogged    time.Time // at most one line a second is logged, the first after a second
	lastReason    string    // the last one logged
}

// step takes the next step towards a founding, and logs what this node waits
// for. last means that Raft has data now.
func (l *foundingLoop) step() (last bool) {
	empty, err := l.isRaftEmpty()
	switch {
	case err != nil:
		l.config.Logger.Warn("founding a cluster failed, retrying", "error", err)
		return false
	case !empty:
		l.announce()
		return true
	case time.Since(l.heldBackSince) < deferTimeout:
		return false
	case l.config.BootstrapExpect == 1 && time.Since(l.startedAt) < seedPatience:
		return false
	}

	holdBack, err := l.foundOnce()
	if holdBack {
		l.heldBackSince = time.Now()
	}
	if err != nil {
		l.waitReason.Store(&err)
		l.logReason(err)
	}
	return false
}

// logReason logs what this node waits for, if that is new or needs a reminder.
func (l *foundingLoop) logReason(err error) {
	reason := err.Error()
	since := time.Since(l.lastLogged)
	isDue := since > remindInterval || since > time.Second && reason != l.lastReason
	if !isDue {
		return
	}

	l.lastLogged = time.Now()
	l.lastReason = reason
	level := slog.LevelInfo
	if errors.Is(err, ErrRefused) {
		level = slog.LevelError // needs an operator
	}
	l.config.Logger.Log(l.ctx, level, "no cluster yet", "reason", reason)
}

// foundOnce takes the next step towards a founding. holdBack means that another
// proposer may go first, so this node waits for deferTimeout. The error says
// what this node waits for.
func (f *founder) foundOnce() (holdBack bool, err error) {
	self := f.config.Self.ID
	view := newFoundingView(self, f.config.BootstrapExpect, f.gossip.Load().Members())
	expectErr := f.checkExpect()
	if expectErr != nil {
		view.set = nil // without a set, this node begins no attempt
	}

	next, step, err := f.chooseStep(view, expectErr)
	if err != nil {
		return false, err
	}

	switch step {
	case stepCheck:
		return false, f.checkPromise(next)
	case stepAsk:
		return f.askPromises(next)
	}
	return false, f.reasonToWait(view, expectErr)
}

// chooseStep decides what to do next. Before a step that needs another promise,
// it puts that promise in force.
func (f *founder) chooseStep(view foundingView, expectErr error) (next promise, step foundingStep, err error) {
	self := f.config.Self.ID
	f.mu.Lock()
	defer f.mu.Unlock()

	next, step = f.promise.nextStep(self, view)
	// nextStep keeps an attempt while there is no set, because missing nodes may
	// come back. But this attempt must not go on: see checkExpect.
	if expectErr != nil && step == stepWait && next.isBy(self) {
		next = next.withdrawn()
		step = stepGiveUp
	}
	if step == stepAsk || step == stepGiveUp {
		err = f.setPromise(next)
	}
	return next, step, err
}

// reasonToWait returns an error that says what this node waits for.
func (f *founder) reasonToWait(view foundingView, expectErr error) error {
	if view.clusterExists {
		return errors.New("a cluster exists already: its leader will add this node")
	}
	if expectErr != nil {
		return expectErr
	}

	g := f.gossip.Load()
	err := waitError(f.config.BootstrapExpect, g.MissingSeeds(), g.Members())

	n := g.Rejecting()
	if n > 0 {
		err = fmt.Errorf("%w; %d of them reject this node: is the cluster secret the same everywhere?", err, n)
	}
	return err
}

// waitError returns an error that names the nodes this one waits for. expect is
// --bootstrap-expect, missing lists the addresses of --join where gossip has
// found no node, and members are gossip's.
func waitError(expect int, missing []string, members []gossip.Member) error {
	found := 0
	others := ""
	for _, m := range members {
		switch {
		case m.State != gossip.Alive || m.BootstrapExpect == 0:
		case m.BootstrapExpect == expect:
			found++
		default:
			others += fmt.Sprintf("; %s has --bootstrap-expect %d", m.Name, m.BootstrapExpect)
		}
	}

	awaited := strings.Join(missing, ", ")
	switch {
	case expect == 0 && awaited != "":
		return fmt.Errorf("waiting for %s, to join its cluster", awaited)
	case expect == 0:
		return errors.New("waiting for the nodes of --join to found a cluster; if this is one of its first nodes, start it with --bootstrap-expect")
	case found >= expect:
		return fmt.Errorf("waiting for another node to found the cluster (%d of %d found)", found, expect)
	}

	return fmt.Errorf("waiting for %s (%d of %d found%s)", cmp.Or(awaited, "more nodes"), found, expect, others)
}

// checkExpect returns an error if at least 2 × --bootstrap-expect nodes are
// starting: after a split of the network, each half would have enough nodes to
// found its own cluster. It also returns an error while the names in --join are
// being resolved.
func (f *founder) checkExpect() error {
	return expectError(f.config.BootstrapExpect, f.gossip.Load().NamedNodes(), f.gossip.Load().Members())
}

// expectError returns checkExpect's error, given --bootstrap-expect, the number
// of nodes that --join names (0 while unresolved), and gossip's members. Nodes
// that only join don't count, because they found nothing.
func expectError(expect, joinCount int, members []gossip.Member) error {
	known := map[string]bool{} // by address: a node that lost its disk has another ID
	for _, m := range members {
		if m.BootstrapExpect > 0 && m.State != gossip.Left {
			known[memberAddress(m)] = true
		}
	}

	n := joinCount
	source := "--join names"
	if len(known) > n {
		n = len(known)
		source = "gossip knows of"
	}

	switch {
	case expect < 1:
		return nil
	case joinCount == 0:
		return errors.New("the names in --join are still being resolved")
	case n >= 2*expect:
		return fmt.Errorf("%w to found a cluster: --bootstrap-expect %d is not more than half of the %d nodes that %s, "+
			"and if the network split now, each half would found one; start all of them with --bootstrap-expect %d or more, "+
			"or start some of them later, without it", ErrRefused, expect, n, source, n/2+1)
	}

	return nil
}

// setPromise stores p on disk, then puts it in force. The caller must hold mu.
func (f *founder) setPromise(p promise) error {
	if p.equal(f.promise) {
		return nil
	}
	if err := storePromise(f.config.Store.Stable(), p); err != nil {
		return err
	}
	f.promise = p
	return nil
}

// checkPromise asks the proposer that holds this node's promise whether the
// attempt is still valid, and withdraws the promise if not. That is safe: a
// proposer denies an attempt only after it has stored on disk that it gave the
// attempt up, and it never uses the number again.
func (f *founder) checkPromise(p promise) error {
	ctx, cancel := context.WithTimeout(f.ctx, promiseTimeout)
	defer cancel()

	var isValid bool
	if err := f.callJSON(ctx, p.Proposer, MethodIsAttemptValid, p.Attempt, &isValid); err != nil {
		return fmt.Errorf("this node has promised node %s to found a cluster with it, and can't reach it: %w", p.Proposer, err)
	}
	if isValid {
		return fmt.Errorf("node %s is founding a cluster and holds this node's promise", p.Proposer)
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	if f.promise.Proposer != p.Proposer || f.promise.Attempt != p.Attempt {
		return nil // another promise has replaced it in the meantime
	}
	return f.setPromise(f.promise.withdrawn())
}

// askPromises asks the other nodes of the set for promises, and founds the
// cluster once all have promised. holdBack is as in foundOnce.
func (f *founder) askPromises(p promise) (holdBack bool, err error) {
	self := f.config.Self.ID
	ctx, cancel := context.WithTimeout(f.ctx, promiseTimeout)
	defer cancel()

	request := promiseRequest{Proposer: self, Attempt: p.Attempt, Set: p.Set}
	for _, id := range p.Set {
		if id == self {
			continue
		}

		var r promiseReply
		err := f.callJSON(ctx, id, MethodPromise, request, &r)

		switch {
		case errors.Is(err, ErrRefused):
			return false, fmt.Errorf("node %s: %w", id, err)
		case err != nil:
			return false, fmt.Errorf("node %s does not answer: %w", id, err)
		case r.Given:
			continue
		case r.Cluster:
			return false, errors.Join(fmt.Errorf("node %s knows of a cluster", id), f.giveUp(p))
		case !r.To.IsZero() && r.To.Compare(self) < 0:
			return true,
				errors.Join(fmt.Errorf("node %s has promised to found a cluster with node %s, which goes first", id, r.To),
					f.giveUp(p))
		}

		return false, fmt.Errorf("node %s has promised to found a cluster with node %s", id, r.To)
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	// During the calls the lock was free: this node may have promised itself to
	// another proposer, or have heard of a cluster or of further nodes.
	if !f.promise.isStillValid(self, p.Attempt) {
		return true, errors.New("this node has given up its attempt in the meantime")
	}
	if newFoundingView(self, f.config.BootstrapExpect, f.gossip.Load().Members()).clusterExists {
		return false, errors.New("a cluster already exists")
	}
	if err := f.checkExpect(); err != nil {
		return false, err
	}

	p.Decided = true
	if err := f.setPromise(p); err != nil {
		return false, err
	}
	if err := f.bootstrap(p.Set); err != nil {
		return false, err
	}

	f.announce()
	return false, nil
}

// giveUp withdraws this node's own attempt.
func (f *founder) giveUp(p promise) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.promise.isStillValid(f.config.Self.ID, p.Attempt) {
		return nil
	}
	return f.setPromise(f.promise.withdrawn())
}

// servePromise answers another node's request for a promise.
func (f *founder) servePromise(_ context.Context, r request) ([]byte, error) {
	var ask promiseRequest
	if err := json.Unmarshal(r.body, &ask); err != nil || ask.Proposer != r.from.Node || len(ask.Set) > maxExpect {
		return nil, errBadCall
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	empty, err := f.isRaftEmpty()
	if err != nil {
		return nil, err
	}
	if err := f.checkExpect(); err != nil && empty {
		return nil, err
	}

	inCluster := !empty || f.Identity().Cluster != [16]byte{} ||
		newFoundingView(f.config.Self.ID, f.config.BootstrapExpect, f.gossip.Load().Members()).clusterExists
	next, reply := f.promise.answer(f.config.Self.ID, ask, inCluster)
	if err := f.setPromise(next); err != nil {
		return nil, err
	}

	return json.Marshal(reply)
}

// serveIsAttemptValid reports whether this node's own attempt with the given number is still valid.
func (f *founder) serveIsAttemptValid(_ context.Context, attempt uint64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.promise.isStillValid(f.config.Self.ID, attempt), nil
}
