package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// WriteOptions are the conditions of a change, and its author.
type WriteOptions struct {
	IfMatch int64  // the version that must be in force; 0 for any
	By      string // the author
	Message string // why, in the author's words; at most rules.MaxMessage bytes
	Via     string // how it is written; see rules.ViaApply
	// Readopt is set for a rollback or restore: the document was in force once, so
	// it is written even if a review objects.
	Readopt bool
}

// Write changes the rules, and returns when the new version is in force on this
// node. If ctx has no deadline, it takes at most Timings.WriteTimeout. The
// error is of type [document.Errors], or it wraps one of these:
//
//   - [rules.ErrConflict], [document.ErrNotFound]
//   - [ErrRefused]
//   - [ErrLeaderUnavailable], [ErrNoPrimary]: nothing was changed, because the
//     leader or the primary region could not be reached
//   - [ErrOutcomeUnknown]
//
// From a secondary region, Write sends the change to the primary, and waits
// only briefly for the new version to arrive in this region. It returns the
// primary's version whether or not it has arrived.
//
// The entry carries a request ID that the cluster remembers. So it is safe to
// propose the entry again when the outcome of an attempt is unknown.
func (c *Cluster) Write(ctx context.Context, change document.Change, o WriteOptions) (int64, error) {
	ctx, cancel := c.withWriteTimeout(ctx)
	defer cancel()

	when := time.Now()
	if change.Part == document.WholeDocument {
		// A whole document does not depend on the rules in force, so it is checked
		// here. A part of a document does, so the leader checks it.
		if err := checkDocument(change.Body, o.Readopt); err != nil {
			return 0, err
		}
	}

	e := agreement.WriteRules{Change: change, IfMatch: o.IfMatch, By: o.By, Message: o.Message, Via: o.Via, When: when}
	_, _ = rand.Read(e.Request[:]) // never fails
	b, err := c.config.Build.Encode(e)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if c.isSecondary() && o.IfMatch != 0 && !c.hasPrimaryRules(c.State()) {
		return 0,
			fmt.Errorf("%w: this region does not have the primary's rules yet, version %d is its own",
				rules.ErrConflict, o.IfMatch)
	}

	var result agreement.Result
	err = c.retry(ctx, func(bool) (err error) {
		result, err = parseResult(c.sharedRules.callPrimary(ctx, MethodWriteRules, b))
		return err
	})
	if err != nil {
		return 0, c.primaryError(err)
	}

	if result.Err != nil {
		return 0, result.Err
	}
	if c.isSecondary() {
		c.awaitPrimaryVersion(ctx, result.Version)
		return result.Version, nil
	}

	// The caller can't rely on the version here, whatever kept it away. The text
	// says that the write itself has succeeded.
	if c.awaitState(ctx, func(s *agreement.State) bool { return rulesVersion(s) >= result.Version }) != nil {
		return 0, fmt.Errorf("%w: version %d was agreed on, but is not in force on this node yet",
			ErrOutcomeUnknown, result.Version)
	}

	return result.Version, nil
}

// checkDocument returns what is wrong with a whole document. A document that
// was in force before need not pass a review.
func checkDocument(text []byte, readopt bool) error {
	parse := document.Review
	if readopt {
		parse = document.Parse
	}
	doc, err := parse(text)
	if err != nil {
		return err
	}

	_, err = rules.Compile(doc, 1)
	if err != nil {
		return document.Errors{{Message: err.Error()}}
	}
	return nil
}

// serveWriteRules proposes a write of rules on the leader, one at a time. propose
// computes the new rules before the entry is agreed on: compiling a large
// document on Raft's goroutine would delay authority.
func (sr *sharedRules) serveWriteRules(ctx context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, sr.config.Timings.WriteTimeout)
	defer cancel()

	e, err := sr.config.Build.Decode(r.body)
	write, ok := e.(agreement.WriteRules)
	if err != nil || !ok {
		return nil, errBadCall // only the leader itself proposes other entries
	}
	if err := sr.requirePrimaryLeader(); err != nil {
		return nil, err
	}

	select {
	case sr.writeSlot <- struct{}{}:
		defer func() { <-sr.writeSlot }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrLeaderUnavailable, ctx.Err())
	}

	// Each write waits until a majority of the ring uses the previous one. So even
	// a stream of writes leaves no node behind that keeps pace with the majority.
	if !sr.granter.AwaitMajority(ctx, sr.machine.rulesIndex.Load()) {
		return nil, fmt.Errorf("%w: most nodes have not applied the rules that are in force yet", ErrLeaderUnavailable)
	}

	// The new rules must give shares to all regions that are present now, and not
	// only from the next window on. But a write with IfMatch is meant for the
	// regions of that version, so it adds none.
	if write.IfMatch == 0 {
		if err := sr.addRegions(ctx, sr.prospectiveFollowers()); err != nil {
			sr.config.Logger.Info("can't add a region before a write", "error", err)
		}
	}

	result, err := sr.propose(ctx, write)
	if err != nil {
		return nil, err
	}

	return result.MarshalJSON()
}

// parseResult reads the agreement.Result in a reply. If it can't, the outcome
// is unknown, because the call was carried out.
func parseResult(b []byte, err error) (r agreement.Result, _ error) {
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return r, nil
}

// CatchUp waits until this node has applied everything that was agreed on
// before the call. The error wraps ErrLeaderUnavailable, ErrClosed or the
// context's error, or is that of StuckError. If ctx has no deadline,
// CatchUp takes at most Timings.WriteTimeout.
func (c *Cluster) CatchUp(ctx context.Context) error {
	ctx, cancel := c.withWriteTimeout(ctx)
	defer cancel()

	var index uint64
	err := c.retry(ctx, func(bool) error {
		err := c.callJSON(ctx, toLeader, authority.MethodCommitted, noBody{}, &index)
		if err != nil {
			// Asking again is harmless, so every error may be retried.
			err = &agreement.ReportedError{Text: err.Error(), Kind: ErrLeaderUnavailable}
		}
		return err
	})
	if err != nil {
		return err
	}

	if err := c.awaitState(ctx, func(s *agreement.State) bool { return s.Index >= index }); err != nil {
		return fmt.Errorf("wait until all agreed entries are applied: %w", err)
	}

	return nil
}
