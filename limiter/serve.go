package limiter

import (
	"context"
	"errors"

	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Handle registers handlers with peers for messages from other limiters, in
// this region and in others.
func (l *Limiter) Handle(peers *peer.Peers) {
	for m := MethodAsk; m < endOfMethods; m++ {
		if m != MethodShare {
			peers.Handle(m, peer.Near, func(call *peer.Call) { l.ServeNear(call.From.Node, call.Method, call.Body, call) })
		}
		if m == MethodLend || m == MethodShare || m == MethodRuleUse {
			peers.Handle(m, peer.Far, func(call *peer.Call) { l.ServeFar(call.Method, call.Body, call) })
		}
	}
}

// ServeNear answers a message from another limiter of this region. It does not
// block, and does not keep body.
func (l *Limiter) ServeNear(from ring.NodeID, method peer.Method, body []byte, to Responder) {
	cp := l.cluster
	if cp == nil {
		to.Fail(CodeMalformed, "this node is not in a cluster")
		return
	}

	switch method {
	case MethodAsk:
		l.serveQuestion(from, body, to)
	case MethodRefund:
		var refunds refundList

		// The message goes one way: there is nobody to tell that it can't be read.
		if wire.Decode(body, &refunds, "refunds") == nil {
			for i := range refunds.list {
				refunds.list[i].hops++
			}
			l.sendRefunds(refunds.list)
		}
	case MethodTop:
		l.serveTop(body, to)
	case MethodActivity:
		cp.serveInBackground(to, func() {
			activity := l.activityHere()
			to.Reply(wire.Encode(nil, &activity))
		})
	case MethodRuleUse:
		cp.serveInBackground(to, func() { to.Reply(wire.Encode(nil, l.ruleUseHere())) })
	case MethodChange:
		var ch change
		serveForwarded(cp, to, body, &ch, func() (wire.Message, error) {
			if err := ch.apply(context.Background(), l); err != nil {
				return nil, err
			}
			return ch.reply(), nil
		})
	case MethodSettle:
		var req settleRequest
		serveForwarded(cp, to, body, &req, func() (*Settlement, error) { return l.reservations.settle(cp.ctx, &req) })
	case MethodReserve:
		var req reserveRequest
		serveForwarded(cp, to, body, &req, func() (*keptAnswer, error) { return l.reservations.serveReserve(&req) })
	case MethodAcquire:
		var req acquireRequest
		serveForwarded(cp, to, body, &req, func() (*acquireReply, error) { return l.serveAcquire(&req) })
	case MethodSlot:
		l.serveSlot(body, to)
	case MethodForget:
		var f forgetMessage
		if wire.Decode(body, &f, "subject to forget") == nil {
			cp.leases.held.Forget(cp.Boottime(), f.subject, f.refusalsOnly)
		}
	case MethodUnspent:
		var qn unspentQuestion
		if decodeOrFail(body, &qn, "question about grants", to) {
			to.Reply(wire.Encode(nil, &unspentReport{cp.leases.held.Unspent(qn.subject, from, qn.boot)}))
		}
	case MethodPassPlaces:
		var pp passedPlaces
		if decodeOrFail(body, &pp, "places in queues", to) {
			to.Reply(nil)
			l.servePassed(&pp)
		}
	case MethodBorrow:
		var req borrowRequest
		if decodeOrFail(body, &req, "need of a loan", to) {
			cp.loans.borrow(&req, func(answer borrowReply) { to.Reply(wire.Encode(nil, &answer)) })
		}
	case MethodLend:
		cp.loans.serveLoanRequest(body, true, to)
	default:
		to.Fail(CodeMalformed, "unknown method")
	}
}

// ServeFar is ServeNear for a message from another region.
func (l *Limiter) ServeFar(method peer.Method, body []byte, to Responder) {
	switch {
	case l.cluster == nil:
		to.Fail(CodeMalformed, "this node is not in a cluster")
	case method == MethodLend:
		l.cluster.loans.serveLoanRequest(body, false, to)
	case method == MethodShare:
		l.serveShare(body, to)
	case method == MethodRuleUse:
		l.cluster.serveInBackground(to, func() {
			ur, _ := l.ruleUseInRegion()
			to.Reply(wire.Encode(nil, ur))
		})
	default:
		to.Fail(CodeMalformed, "unknown method between regions")
	}
}

// serveTop sends another node this node's part of a list of subjects.
func (l *Limiter) serveTop(body []byte, to Responder) {
	if len(body) != 1 || top.By(body[0]) > top.Near {
		to.Fail(CodeMalformed, "unknown list of subjects")
		return
	}
	by := top.By(body[0])
	l.cluster.serveInBackground(to, func() {
		to.Reply(wire.Encode(nil, top.NewPart(by, l.topHere(by))))
	})
}

// serveSlot answers another node's slotRequest. If this node owns the slot, it
// answers a release at once, because a release waits for nothing.
func (l *Limiter) serveSlot(body []byte, to Responder) {
	cp := l.cluster
	req := &slotRequest{}
	if err := wire.Decode(body, req, "request about a slot"); err != nil {
		to.Fail(CodeMalformed, err.Error())
		return
	}

	if req.isPrompt() && cp.Ownership.Route(req.list[0].Key.Partition()).Location == partitions.Here && cp.Authority() {
		result, err := l.serveSlotHere(req)

		// If the partition has just become pending, go on below: askSlot waits, or asks
		// the next owner.
		if !errors.Is(err, counters.ErrShut) {
			to.Reply(encodeResult(&result, err))
			return
		}
	}

	cp.serveInBackground(to, func() {
		ctx, cancel := context.WithTimeout(cp.ctx, ownerTimeout)
		defer cancel()
		result, err := l.askSlot(ctx, req)
		to.Reply(encodeResult(result, err))
	})
}

// serveShare tells another region what this one has used of a subject's limits.
func (l *Limiter) serveShare(body []byte, to Responder) {
	var ref subjectRef
	if !decodeOrFail(body, &ref, "subject", to) {
		return
	}
	if active := l.active.Load(); active == nil || active.set.Rule(ref.Rule) == nil ||
		active.set.Rule(ref.Rule).Scope != rules.GlobalScope {
		to.Fail(CodeMalformed, "unknown rule, or not a rule that regions share")
		return
	}

	l.cluster.serveInBackground(to, func() {
		u, err := l.usageInRegion(&Query{Rule: ref.Rule, Key: ref.Key})
		if err != nil {
			to.Fail(CodeBusy, err.Error())
			return
		}
		to.Reply(wire.Encode(nil, &shareReply{ownShares(u)}))
	})
}
