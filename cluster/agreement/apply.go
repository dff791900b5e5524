package agreement

import (
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// ErrRejected means that an entry is invalid, or that its conditions don't
// hold. The entry has changed nothing.
var ErrRejected = errors.New("entry is rejected")

// Result is the outcome of an entry.
type Result struct {
	// Version is that of the rules, after an entry that put rules in force, or that
	// of the entries beside the rules, after an entry that changed those; else 0.
	Version int64
	// Err is nil, an [*Unreadable] or a document.Errors, or wraps ErrRejected,
	// rules.ErrConflict, document.ErrNotFound or an error of package entries. If it
	// repeats an earlier answer, details may be lost: see [ReportedError].
	Err error
}

// Apply calls [Build.Apply] on [ThisBuild].
func (s *State) Apply(index uint64, entry []byte) (*State, Result) {
	return ThisBuild.Apply(s, index, entry, nil)
}

// Apply returns the state after an entry that has the given index in Raft's
// log. If the result has an error, nothing has changed but Index, the hashes
// and the remembered answers. An entry whose index is not above State.Index has
// been applied already, and changes nothing at all.
//
// If the error is an [*Unreadable], the state is s itself, and this build must
// apply no further entries: nodes that can read the entry now have another
// state.
//
// If p was prepared for the entry, Apply takes the result from p instead of
// computing it again. The outcome is the same. p may be nil.
func (b *Build) Apply(s *State, index uint64, entry []byte, p *Prepared) (*State, Result) {
	if index <= s.Index {
		return s, rejected("index %d is not above %d", index, s.Index)
	}

	e, err := b.decode(entry)
	if err != nil {
		return s, Result{Err: err}
	}

	next := *s
	next.Index = index
	r, err := e.applyTo(&next, s, p)
	if err != nil {
		return s, Result{Err: b.unreadable(e.level, e.release, err)}
	}

	next.setHash(s, entry, r)
	return &next, r
}

// Rejection returns the error with which s would reject the entry, or nil.
func (s *State) Rejection(e Entry) error {
	next := *s
	next.Index++
	return e.apply(&next).Err
}

// applyTo applies the entry to next, a copy of s with the entry's index. On an
// error, the caller must discard next.
func (e *stampedEntry) applyTo(next, s *State, p *Prepared) (Result, error) {
	if err := s.checkLevel(e.Entry, e.level); err != nil {
		return Result{Err: err}, nil
	}

	apply := func() Result {
		write, isWrite := e.Entry.(WriteRules)
		if isWrite && p.fits(s, write) {
			return write.finishWrite(next, p.after, p.writeErr)
		}
		return e.apply(next)
	}
	if e.transition == nil {
		return apply(), nil
	}

	return e.transition.applyVerified(s, next, apply)
}

// Prepared is the result of a change of rules or regions, computed in advance.
type Prepared struct {
	request  RequestID
	before   *rules.History // before and regions are what the change was prepared for
	regions  *Regions
	after    *rules.History // after and writeErr are the result of a WriteRules entry's write
	writeErr error
	refusal  error // see Refusal
}

// Refusal returns why the change can't be made, or nil if it can. Don't propose
// a refused change: it would change nothing here, but a build that accepts it
// would get another result, and its node would stop.
func (p *Prepared) Refusal() error { return p.refusal }

// IsCurrent reports whether s still has the rules and regions that the change was prepared for.
func (p *Prepared) IsCurrent(s *State) bool { return p.before == s.History && p.regions == s.Regions }

// prepareWrite computes the result of e in advance. Applying e then takes no
// time, unless another change is applied first.
func (s *State) prepareWrite(e WriteRules) *Prepared {
	p := &Prepared{request: e.Request, before: s.History}
	p.after, p.writeErr = e.write(s.History)
	return p
}

// fits reports whether p was prepared for e and for the rules in s, and e has
// no answer yet.
func (p *Prepared) fits(s *State, e WriteRules) bool {
	return p != nil && p.before == s.History && e.Request == p.request && !e.Request.IsZero() &&
		s.answerTo(e.Request) == nil
}

// rejected returns the result of a rejected entry, which has changed nothing.
func rejected(format string, args ...any) Result {
	return Result{Err: fmt.Errorf("%w: "+format, append([]any{ErrRejected}, args...)...)}
}

func (e FoundCluster) apply(next *State) Result {
	switch {
	case e.Cluster.IsZero():
		return rejected("the cluster has no ID")
	case len(e.SigningKey) != secretBytes:
		return rejected("the secret has %d bytes, not %d", len(e.SigningKey), secretBytes)
	case next.Cluster.IsZero():
		next.Cluster = e.Cluster
		next.SigningKey = e.SigningKey
		next.Level = max(next.Level, e.Level)
	}
	return Result{}
}

func (e Empty) apply(*State) Result { return Result{} }

// checkLevel rejects an entry above the feature level that the members have agreed on.
func (s *State) checkLevel(e Entry, level Level) error {
	switch e.(type) {
	// These two set the level, so they may need one above it.
	case Raise, FoundCluster:
		return nil
	}
	if level > s.Level {
		return rejected("it needs feature level %d, and the cluster is at %d", level, s.Level).Err
	}
	return nil
}

func (e Raise) apply(next *State) Result {
	if e.Level <= next.Level {
		return rejected("the feature level is already %d", next.Level)
	}
	for id := range next.Members {
		if p, booted := next.Processes[id]; booted && p.knownLevel() < e.Level {
			return rejected("%s knows feature level %d", id, p.knownLevel())
		}
	}
	next.Level = e.Level
	return Result{}
}

func (e Skipped) apply(*State) Result { return Result{} }

func (e Ring) apply(next *State) Result {
	if r := next.checkMove(e.Epoch); r.Err != nil {
		return r
	}

	members := maps.Clone(next.Members)
	strangers := next.Strangers
	ids := make([]ring.NodeID, 0, len(e.Members))
	for _, m := range e.Members {
		for _, text := range [][2]string{{"name", m.Name}, {"address", m.Address},
			{"region", m.Region}, {"zone", m.Zone}} {
			if len(text[1]) > maxText {
				return rejected("the %s of %s has more than %d bytes", text[0], m.ID, maxText)
			}
		}

		members[m.ID] = m
		if next.Generations[m.ID] > 0 {
			strangers = withoutID(strangers, m.ID)
		}
		ids = append(ids, m.ID)
	}

	if len(members) > MaxKnown {
		return rejected("%d nodes would be known, more than %d", len(members), MaxKnown)
	}

	to, err := ring.New(ids, e.Settings)
	if err != nil {
		return Result{Err: fmt.Errorf("%w: %w", ErrRejected, err)}
	}

	next.Epoch = e.Epoch
	next.Members = members
	next.Strangers = strangers
	next.move(next.From, to)

	return Result{}
}

// checkMove rejects a move to epoch unless it is the next one and the last move has ended.
func (s *State) checkMove(epoch int64) Result {
	switch {
	case s.Epoch == math.MaxInt64 || epoch != s.Epoch+1:
		return rejected("epoch %d does not follow %d", epoch, s.Epoch)
	case !s.Settled:
		return rejected("epoch %d is not settled", s.Epoch)
	}
	return Result{}
}

func (e Leave) apply(next *State) Result {
	if r := next.checkMove(e.Epoch); r.Err != nil {
		return r
	}

	switch {
	case next.From.Rank(e.Node) < 0:
		return rejected("%s is not in the ring", e.Node)
	case len(next.From.Members()) == 1:
		return rejected("%s is alone in the ring", e.Node)
	case !e.Reason.isKnown():
		return rejected("unknown reason %q", e.Reason)
	}

	next.Epoch = e.Epoch
	next.suspend(e.Node, e.Reason, e.When)
	next.move(next.From, next.From.Without(e.Node))
	return Result{}
}

func (e SettleMove) apply(next *State) Result {
	if e.Epoch != next.Epoch {
		return rejected("the epoch is %d, not %d", next.Epoch, e.Epoch)
	}
	if e.Revision != 0 && e.Revision != next.Revision {
		return rejected("the revision is %d, not %d", next.Revision, e.Revision)
	}
	next.From = next.To
	next.Settled = true
	next.Revision = next.Index
	return Result{}
}

func (e EndNode) apply(next *State) Result {
	if r := next.checkReign(e.Reign); r.Err != nil {
		return r
	}

	have := next.Generation(e.Node)
	switch {
	case e.Node.IsZero():
		return rejected("the node is zero")
	case e.Generation != have || have == math.MaxInt64:
		return rejected("%s has generation %d, not %d", e.Node, have, e.Generation)
	case !e.Reason.isKnown():
		return rejected("unknown reason %q", e.Reason)
	}

	if e.Reason == Removed {
		next.recordRemoved(e.Node)
	}

	next.suspend(e.Node, e.Reason, e.When)
	next.setGeneration(e.Node, have+1)
	next.LastEnded = next.Index
	next.Revision = next.Index
	if !next.InRing(e.Node) {
		return Result{}
	}

	from, to := next.From.Without(e.Node), next.To.Without(e.Node)
	if next.Settled {
		to = from
	}

	// Without keeps a ring's only member. If that happened to one ring only, the
	// other ring's members take over both. See the package comment.
	stillFrom, stillTo := from.Rank(e.Node) >= 0, to.Rank(e.Node) >= 0
	switch {
	case stillFrom && !stillTo:
		from = to
	case stillTo && !stillFrom:
		to = from
	}

	next.move(from, to)
	return Result{}
}

func (e RegisterProcess) apply(next *State) Result {
	if r := next.checkReign(e.Reign); r.Err != nil {
		return r
	}

	last := next.Processes[e.Node]
	switch {
	case e.Node.IsZero() || e.Boot == 0:
		return rejected("the node or its boot is zero")
	case last.Boot == e.Boot:
		return Result{}
	case max(1, e.Level) < next.Level:
		return rejected("%s knows feature level %d, and the cluster is at %d", e.Node, e.Level, next.Level)
	case len(e.Release) > MaxRelease:
		return rejected("the release of %s has more than %d bytes", e.Node, MaxRelease)
	case len(e.Zones) > MaxRelease:
		return rejected("the zones of %s have more than %d bytes", e.Node, MaxRelease)
	case last.WasFormer(e.Boot):
		return rejected("%s has started another process since", e.Node)
	}

	next.setProcess(e.Node, last.successor(e, next.Index))
	if len(next.Processes) > MaxProcesses {
		next.dropOldestProcess()
	}
	next.Revision = next.Index
	return Result{}
}

func (e Forget) apply(next *State) Result {
	if _, known := next.Members[e.Node]; !known {
		return rejected("%s is not known", e.Node)
	}
	if next.InRing(e.Node) {
		return rejected("%s is in a ring", e.Node)
	}

	next.Members = maps.Clone(next.Members)
	delete(next.Members, e.Node)
	next.Processes = maps.Clone(next.Processes)
	delete(next.Processes, e.Node)

	// The node is a stranger now. Its generation is kept only as long as the list
	// of strangers has room for the node, so the node must be listed.
	if generation := next.Generation(e.Node); generation > 0 {
		next.setGeneration(e.Node, generation)
	}

	return Result{}
}

func (e WriteRules) apply(next *State) Result {
	if a := next.answerTo(e.Request); a != nil {
		return a.Result
	}
	history, err := e.write(next.History)
	return e.finishWrite(next, history, err)
}

// write returns the history with the change. It is slow: parsing and compiling
// a document of 100,000 subjects takes about a second.
func (e WriteRules) write(h *rules.History) (*rules.History, error) {
	return h.Write(rules.Write{
		Change: e.Change, IfMatch: e.IfMatch, OnlyFirst: e.OnlyFirst, By: e.By, Message: e.Message,
		Via: e.Via, When: e.When,
	})
}

// finishWrite puts the result of write in force, and remembers the answer.
func (e WriteRules) finishWrite(next *State, history *rules.History, err error) Result {
	var r Result
	r.Version, r.Err = next.adoptHistory(history, err)
	next.rememberAnswer(e.Request, r)
	return r
}

// adoptHistory puts a history in force, and returns the version in force. If
// err is not nil, there is no history, and adoptHistory only returns err.
func (s *State) adoptHistory(history *rules.History, err error) (int64, error) {
	if err != nil {
		return 0, err
	}

	doc, version := history.Current()
	if Level(doc.FeatureLevel()) > s.Level {
		return 0, document.Errors{{Message: fmt.Sprintf("the document has keys or values that older releases can't read: it needs feature level %d, and the cluster is at %d",
			doc.FeatureLevel(), s.Level)}}
	}

	regions := s.Regions.withNextRevision()
	if regions.holdVersion(history) != nil {
		return 0, document.Errors{{Message: errTooManyHeld.Error()}}
	}

	s.History = history
	s.Regions = regions
	return version.Number, nil
}
