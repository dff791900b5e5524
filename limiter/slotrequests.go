package limiter

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// slotVerb says what a slotRequest does.
type slotVerb uint8

const (
	slotReleaseUnanswered slotVerb = iota // release the slot, unless a repeated request was answered with it
	slotRenew                             // make the slot end later, or earlier
	slotRelease                           // release the slot
	slotReport                            // count the slot, because a cut-off node has granted it
	slotReleaseAny                        // release the slot, whatever its nonce
	slotVerbs
)

// slotRequest asks an owner to do something with slots of one ID.
type slotRequest struct {
	verb slotVerb
	hops int
	id   uint64
	// nonce must be the slot's, except with slotReleaseAny.
	nonce      uint64
	mayRestore bool // with slotRenew: if the slot is missing, it is put back
	list       []slotPart
	// rest is not sent. Once list is released, this node releases rest, too.
	rest []slotPart
}

// Code implements wire.Message.
func (req *slotRequest) Code(c *wire.Coder) {
	wire.Number(c, &req.verb, int64(slotVerbs-1))
	wire.Number(c, &req.hops, maxHops)
	wire.Fixed(c, &req.id)
	wire.Fixed(c, &req.nonce)
	c.Bool(&req.mayRestore)
	wire.List(c, &req.list, MaxReserved, minSlotPart, func(part *slotPart) { part.code(c) })
	c.Require(req.hops > 0 && len(req.list) == 1)
}

// slotResult is the result of a slotRequest.
type slotResult struct {
	units int64 // how many were released
	stays bool  // not released, because a repetition was answered with the slot
}

// Code implements wire.Message.
func (result *slotResult) Code(c *wire.Coder) {
	wire.Number(c, &result.units, math.MaxInt64)
	c.Bool(&result.stays)
}

// askSlots has the owners of parts, slots of one ID, carry out req, all at the
// same time. It returns a result and an error for each part.
func (l *Limiter) askSlots(ctx context.Context, req slotRequest, parts []slotPart) ([]*slotResult, []error) {
	results := make([]*slotResult, len(parts))
	errs := make([]error, len(parts))
	var pending sync.WaitGroup
	for i := range parts {
		single := req
		single.list = parts[i : i+1]
		askOwner := func() { results[i], errs[i] = l.askSlot(ctx, &single) }
		if len(parts) == 1 {
			askOwner()
		} else {
			pending.Go(askOwner)
		}
	}

	pending.Wait()
	return results, errs
}

// askSlot has the owner of req's slot, which may be this node, carry out req.
// The error is ErrUnknownSlot, ErrTryAgain or ErrNoOwner.
func (l *Limiter) askSlot(ctx context.Context, req *slotRequest) (result *slotResult, err error) {
	result = &slotResult{}
	err = l.doAtOwner(ctx, &ownerRequest{subject: req.list[0].Key.Subject, hops: req.hops, here: func() (err error) {
		*result, err = l.serveSlotHere(req)
		return err
	}, there: func(to ring.NodeID) error { // asking twice does no harm
		next := *req
		next.hops++
		return l.cluster.request(ctx, to, MethodSlot, &next, result)
	}})
	return result, err
}

// isPrompt reports whether the slot's owner carries out req without waiting.
func (req *slotRequest) isPrompt() bool { return req.verb != slotRenew && req.verb != slotReport }

// serveSlotHere carries out req on this node's notes, as their owner. The error
// is counters.ErrShut, ErrUnknownSlot or ErrTryAgain.
func (l *Limiter) serveSlotHere(req *slotRequest) (result slotResult, err error) {
	part := &req.list[0]
	now := l.clock.Now()

	// Read the lineage before the change. A lineage that begins after that may lack
	// the slot, so confirmSlots compares.
	at := storedAt{part.Key.Partition(), l.table.Lineage(part.Key.Partition())}
	info, held, err := l.table.FindSlot(now, part.Key, req.id)
	switch {
	case err != nil:
		return result, err
	case req.verb == slotReport && held: // a renewal, or an earlier try, has put the slot here
		return result, nil
	case req.verb == slotRelease || req.verb == slotReleaseUnanswered || req.verb == slotReleaseAny:
		nonce := req.nonce
		if req.verb == slotReleaseAny {
			nonce = info.Nonce
		}

		// Nobody waits until a release would outlive this node: a copy that lacks it
		// only holds the slot until its end.
		held, stays, err := l.table.ReleaseSlot(now, part.Key, req.id, nonce, req.verb == slotReleaseUnanswered)
		if held {
			result.units = part.Units
		}
		result.stays = stays
		return result, err
	}

	// The verb is slotRenew, or slotReport of a slot that the owner does not have.
	// A holder counts on the old end until its renewal is answered. So a renewal
	// that makes the slot end earlier takes effect only once it is confirmed.
	isShorter := held && now.Steady+int64(part.holdFor) < info.End
	if !isShorter {
		err = l.renewHere(now, req)
	}
	switch {
	case err != nil:
		return result, err
	case l.confirmSlots([]storedAt{at}):
	case !l.table.IsOpen(at.partition): // the partition moves; its next owner carries out req once more
		return result, counters.ErrShut
	default:
		return result, ErrTryAgain
	}

	if isShorter {
		err = l.renewHere(now, req)
	}
	if err == nil && req.verb == slotRenew {
		l.countRenewal(part.Group)
	}
	return result, err
}

// renewHere makes the slot of req last as long as req says. The verb is
// slotRenew or slotReport. The error is counters.ErrShut or ErrUnknownSlot.
func (l *Limiter) renewHere(now algorithms.Instant, req *slotRequest) error {
	part := &req.list[0]
	mayRestore := req.mayRestore || req.verb == slotReport
	err := l.table.RenewSlot(now, &part.SlotPart, req.id, req.nonce, part.holdFor, mayRestore)
	if errors.Is(err, counters.ErrOver) {
		return ErrUnknownSlot
	}
	return err
}

// countRenewal counts a renewal of a slot of a rule.
func (l *Limiter) countRenewal(group uint32) {
	if active := l.active.Load(); active != nil {
		if rule := active.slotRules()[group]; rule != nil {
			rule.stats.slotRenewals.Add(1)
		}
	}
}

// release is releaseParts for all parts of sl.
func (l *Limiter) release(ctx context.Context, sl *slot) (held, done bool) {
	req := slotRequest{verb: slotRelease, id: sl.id, nonce: sl.nonce}

	// Only the node that has granted a slot alone tells its owners of it.
	if sl.alone && l.cluster != nil && sl.granter == l.cluster.Self {
		l.cancelReports(req, sl.parts)
	}
	return l.releaseParts(ctx, req, sl.parts)
}

// releaseParts has the owners of parts carry out req, a slotRelease, all at the
// same time. held means that at least one part was held; done means that all
// are released. In a cluster, this node keeps trying to release the other parts
// in the background, until they have ended.
func (l *Limiter) releaseParts(ctx context.Context, req slotRequest, parts []slotPart) (held, done bool) {
	results, errs := l.askSlots(ctx, req, parts)
	done = true
	for i, err := range errs {
		held = held || results[i].units > 0
		if err != nil {
			done = false
			later := req
			later.list = []slotPart{parts[i]}
			l.enqueueSlotRequest(later)
		}
	}

	return held, done
}

// cancelReports sees to it that no slotReport of what req releases counts the
// slot again. One that is on its way may arrive after the release, so its part
// is released once more.
func (l *Limiter) cancelReports(req slotRequest, parts []slotPart) {
	isReleased := func(t task) bool {
		report := t.(*slotRequest)
		return report.verb == slotReport && report.id == req.id && report.nonce == req.nonce &&
			slices.ContainsFunc(parts, func(part slotPart) bool { return part.Key == report.list[0].Key })
	}
	l.cluster.slotTasks.forget(isReleased, func(t task) {
		release := req
		release.list = t.(*slotRequest).list
		l.enqueueSlotRequest(release)
	})
}

// reportSlot tells the owners of the slot's parts, as soon as they can be
// reached, that this node has granted the parts alone.
func (l *Limiter) reportSlot(sl *slot) {
	for i := range sl.parts {
		l.enqueueSlotRequest(slotRequest{verb: slotReport, id: sl.id, nonce: sl.nonce, list: []slotPart{sl.parts[i]}})
	}
}

const (
	// maxSlotTasks bounds the tasks about slots that wait on a node. Slots whose
	// release finds no room end by themselves.
	maxSlotTasks = 65536
	// taskPause is the time between two attempts of a task.
	taskPause = 100 * time.Millisecond
)

// enqueueSlotRequest has req tried again until its owner acknowledges it, or for
// as long as the limit lets a slot last.
func (l *Limiter) enqueueSlotRequest(req slotRequest) {
	if l.cluster != nil {
		longest := req.list[0].TTL
		for _, part := range req.rest {
			longest = max(longest, part.TTL)
		}
		l.cluster.slotTasks.keep(&req, longest)
	}
}

// try implements task.
func (req *slotRequest) try(ctx context.Context, l *Limiter, left time.Duration) bool {
	if req.verb == slotReport { // the holder may have had the slot for a while
		req.list[0].holdFor = max(time.Millisecond, min(req.list[0].holdFor, left))
	}
	result, err := l.askSlot(ctx, req)
	if err != nil && !errors.Is(err, ErrUnknownSlot) {
		return false
	}

	if len(req.rest) > 0 && !result.stays {
		l.releaseParts(ctx, slotRequest{verb: slotRelease, id: req.id, nonce: req.nonce}, req.rest)
	}
	return true
}

// countLost implements task.
func (req *slotRequest) countLost(l *Limiter, late bool) {
	if !late { // if late, the slot has ended by itself
		l.cluster.counts.slotTasksDropped.Add(1)
	}
}
