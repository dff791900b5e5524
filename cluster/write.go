package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/rules"
)

// retryPause is between two attempts of a write: an election takes some of them.
const retryPause = 50 * time.Millisecond

// WriteOptions say on what terms a change is made.
type WriteOptions struct {
	IfMatch int64  // the version that must be in force; 0: any
	By      string // who makes it
}

// Write changes the rules, and returns when the new version is in force on this node. The error is of type
// [rules.Errors], or wraps [rules.ErrConflict] or [rules.ErrNotFound], or [ErrNoLeader] if nothing was changed because
// nobody could agree, [ErrNoPrimary] if nothing was changed because the region where rules are written is away, or
// [ErrUnknown]. It takes Timings.Write at most if ctx has no deadline.
//
// In another region than the primary the change is made there. It is waited for only for a moment then; see writeFar.
//
// The entry carries a number that the cluster remembers, so it is safe to propose it again when the outcome of an
// attempt is unknown.
func (c *Cluster) Write(ctx context.Context, change rules.Change, o WriteOptions) (int64, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	when := time.Now()
	if change.Part == rules.WholeDocument {
		// A document is wrong or not whatever is in force; a piece depends on it, and the leader decides.
		if _, err := rules.NewHistory().Write(rules.Write{Change: change, By: o.By, When: when}); err != nil {
			return 0, err
		}
	}
	e := agreement.Rules{Change: change, IfMatch: o.IfMatch, By: o.By, When: when}
	_, _ = rand.Read(e.Request[:]) // it never fails
	b, err := agreement.Encode(e)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if c.secondary() {
		return c.writeFar(ctx, b, o)
	}
	result, err := c.agree(ctx, b)
	if err != nil {
		return 0, err
	}
	if result.Err != nil {
		return 0, result.Err
	}
	if c.wait(ctx, func(s *agreement.State) bool { return rulesVersion(s) >= result.Version }) != nil {
		return 0, fmt.Errorf("%w here: version %d was agreed on, but is not in force on this node yet", ErrUnknown, result.Version)
	}
	return result.Version, nil
}

// bound gives ctx a deadline if it has none.
func (c *Cluster) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.Timings.Write)
}

// agree has an entry agreed on that may be proposed more than once, until ctx ends.
func (c *Cluster) agree(ctx context.Context, entry []byte) (agreement.Result, error) {
	unknown := false
	for {
		result, err := c.submit(ctx, entry)
		if err == nil || errors.Is(err, ErrNoPrimary) && !unknown {
			return result, err
		}
		unknown = unknown || !errors.Is(err, ErrNoLeader)
		pause := time.NewTimer(retryPause)
		select {
		case <-pause.C:
			continue
		case <-ctx.Done():
		case <-c.ctx.Done():
			err = errors.Join(err, ErrClosed)
		}
		pause.Stop()
		if unknown {
			return agreement.Result{}, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		return agreement.Result{}, err
	}
}

// submit proposes an entry here or at the leader, once.
func (c *Cluster) submit(ctx context.Context, entry []byte) (agreement.Result, error) {
	if c.leads() {
		return c.proposeRules(ctx, entry)
	}
	b, err := c.callLeader(ctx, MethodPropose, entry)
	if err != nil {
		return agreement.Result{}, err
	}
	return parseResult(b)
}

// proposeRules proposes a write of rules as the leader, one at a time. What it leads to is worked out beforehand: Raft's
// goroutine, which authority waits for, would be held up by a large document.
func (c *Cluster) proposeRules(ctx context.Context, entry []byte) (agreement.Result, error) {
	e, err := agreement.Decode(entry)
	write, ok := e.(agreement.Rules)
	if err != nil || !ok {
		return agreement.Result{}, errBadCall // whatever else is agreed, the leader proposes by itself
	}
	if err := c.governs(); err != nil {
		return agreement.Result{}, err
	}
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return agreement.Result{}, fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
	}
	// Each write waits until a majority of the ring goes by the one before. So however many there are, nobody is left behind who
	// is no slower than most.
	if !c.giver.Followed(ctx, c.machine.ruled.Load()) {
		return agreement.Result{}, fmt.Errorf("%w: most nodes have not applied the rules that are in force yet", ErrNoLeader)
	}
	// What is written now is to be shared with the regions that are there now, and not from the next window on. A write
	// for a certain version is for certain regions, too.
	if write.IfMatch == 0 {
		if err := c.addRegions(ctx, c.newcomers()); err != nil {
			c.cfg.Logger.Info("a region is not added before a write", "error", err)
		}
	}
	return c.propose(ctx, write)
}

// servePropose is submit's other end.
func (c *Cluster) servePropose(ctx context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timings.Write)
	defer cancel()
	result, err := c.proposeRules(ctx, r.body)
	if err != nil {
		return nil, err
	}
	return appendResult(result)
}

// resultMessage is an agreement.Result on its way.
type resultMessage struct {
	Version int64        `json:"version,omitempty"`
	Kind    resultKind   `json:"kind,omitempty"`
	Detail  string       `json:"detail,omitempty"`
	Errors  rules.Errors `json:"errors,omitempty"`
}

// resultKind says what sort of error a result has.
type resultKind uint8

const (
	resultDone resultKind = iota
	resultConflict
	resultNotFound
	resultInvalid
	resultRejected
)

// told is an error of another node, of a kind that is known here.
type told struct {
	kind   error
	detail string
}

// Error is the other node's text.
func (t *told) Error() string { return t.detail }

// Unwrap is the kind.
func (t *told) Unwrap() error { return t.kind }

func appendResult(r agreement.Result) ([]byte, error) {
	m := resultMessage{Version: r.Version}
	if r.Err != nil {
		m.Kind, m.Detail = resultRejected, r.Err.Error()
		switch {
		case errors.As(r.Err, &m.Errors):
			m.Kind, m.Detail = resultInvalid, ""
		case errors.Is(r.Err, rules.ErrConflict):
			m.Kind = resultConflict
		case errors.Is(r.Err, rules.ErrNotFound):
			m.Kind = resultNotFound
		}
	}
	return json.Marshal(m)
}

// parseResult is the inverse of appendResult. What can't be read was done all the same: its outcome is unknown.
func parseResult(b []byte) (agreement.Result, error) {
	var m resultMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return agreement.Result{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	r := agreement.Result{Version: m.Version}
	switch m.Kind {
	case resultDone:
	case resultInvalid:
		r.Err = m.Errors
	case resultConflict:
		r.Err = &told{rules.ErrConflict, m.Detail}
	case resultNotFound:
		r.Err = &told{rules.ErrNotFound, m.Detail}
	default:
		r.Err = &told{agreement.ErrRejected, m.Detail}
	}
	return r, nil
}

// Catch returns when this node has applied all that had been agreed on when it was called. The error wraps ErrNoLeader,
// or is the context's. It takes Timings.Write at most if ctx has no deadline.
func (c *Cluster) Catch(ctx context.Context) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for {
		index, err := c.committed(ctx)
		if err == nil {
			if err = c.wait(ctx, func(s *agreement.State) bool { return s.Index >= index }); err != nil {
				return fmt.Errorf("wait for what was agreed: %w", err)
			}
			return nil
		}
		pause := time.NewTimer(retryPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("%w: %w", ErrNoLeader, err)
		case <-c.ctx.Done():
			pause.Stop()
			return ErrClosed
		}
	}
}

// committed asks the leader up to where entries are committed.
func (c *Cluster) committed(ctx context.Context) (uint64, error) {
	if c.leads() {
		return c.giver.Committed(ctx)
	}
	b, err := c.callLeader(ctx, authority.MethodCommitted, nil)
	if err != nil {
		return 0, err
	}
	r, err := authority.ParseReply(b)
	return r.Index, err
}

// begin is the loop that founds the cluster and seeds its rules, on whichever node leads first: a founder may die
// between its first entries.
func (c *Cluster) begin() {
	for {
		select {
		case <-c.found:
		case <-c.ctx.Done():
			return
		}
		for c.leads() && c.ctx.Err() == nil {
			err := c.beginOnce()
			if err == nil {
				break
			}
			c.cfg.Logger.Debug("the cluster has not begun", "error", err)
			select {
			case <-time.After(c.cfg.Timings.Founding):
			case <-c.ctx.Done():
			}
		}
	}
}

func (c *Cluster) beginOnce() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Timings.Write)
	defer cancel()
	// Only after an entry of its own has been applied does a leader know what there is.
	if _, err := c.propose(ctx, agreement.Empty{}); err != nil {
		return err
	}
	if c.State().Cluster.IsZero() {
		e := agreement.Found{Secret: make([]byte, 32)}
		if conf, _ := c.configuration(); len(conf.Servers) == 1 {
			e.Level = c.cfg.Build.Level // there is nobody who could know less
		}
		_, _ = rand.Read(e.Cluster[:]) // these never fail
		_, _ = rand.Read(e.Secret)
		if _, err := c.propose(ctx, e); err != nil {
			return err
		}
	}
	if err := c.claim(ctx); err != nil {
		return err
	}
	if rulesVersion(c.State()) != 0 || c.cfg.Seed == nil {
		return nil
	}
	text, by := c.cfg.Seed()
	r, err := c.propose(ctx, agreement.Rules{Change: rules.Change{Body: text}, OnlyFirst: true, By: by, When: time.Now()})
	if err != nil {
		return err
	}
	if r.Err != nil && !errors.Is(r.Err, rules.ErrConflict) {
		c.cfg.Logger.Error("the first rules are not valid; write others", "error", r.Err)
	}
	return nil
}
