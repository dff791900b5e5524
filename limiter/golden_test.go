package limiter

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

type goldenMessage struct {
	name  string
	bytes []byte
	read  func(b []byte) error
}

func message(name string, m wire.Message) goldenMessage {
	return goldenMessage{name, wire.Encode(nil, m), func(b []byte) error { return wire.Decode(b, m, name) }}
}

// TestGolden checks that the format of messages has not changed.
func TestGolden(t *testing.T) {
	key := []byte("key")
	limit := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 5, Burst: 9, Window: time.Second}
	taken := takenCosts{
		subject: 1, life: counters.Life{Lineage: 2, Resets: 9}, boot: 3, steady: 4, marks: []algorithms.TakeMark{7},
		ops: []counters.Op{{Key: counters.Key{Subject: 1, Counter: 5}, Limit: &limit, Cost: 6}},
	}
	reservation := reservation{madeAt: 1, until: 2, hasPlace: true, group: 300,
		units:    []string{"tokens"},
		subjects: []reservedSubject{{takenCosts: taken, units: []int{0}, hashLo: 8, rule: "r", key: []string{"k", ""}}}}
	all := algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 2, Window: time.Minute, MaxDelay: time.Second}
	ops := someOps()
	ops[3].Limit = &all
	counts := Counts{}
	counts[0][0], counts[1][1] = 7, 300
	messages := []goldenMessage{
		{"question", someQuestion().appendBody(someQuestion().appendHead(nil)),
			func(b []byte) error { return new(question).read(b) }},
		{"reply", someReply().append(nil), func(b []byte) error { return new(reply).read(b, 4, 3, 5) }},
		{"not-mine",
			(&reply{replyHead: replyHead{status: statusNotOwner, revision: 5, version: 1}}).append(nil),
			func(b []byte) error { return new(reply).read(b, 4, 3, 5) }},
		{"gifts", wire.Encode(nil, someRefunds()),
			func(b []byte) error { return wire.Decode(b, new(refundList), "gifts") }},
		{"reservation", []byte(reservation.id(key)),
			func(b []byte) error { _, err := parseReservation(string(b), key); return err }},
		message("named", &subjectRef{version: 7, Rule: "r", Key: []string{"a", "b"}}),
		message("borrow-request",
			&borrowRequest{subjectRef: subjectRef{Rule: "r"}, needs: []loanNeed{{limit: 8, cost: 3, expectedUse: 300}}}),
		message("borrow-reply", &borrowReply{noneToLend: true, callerBackoff: 2 * time.Second}),
		message("loan-request", &LoanRequest{subjectRef: subjectRef{Rule: "r"}, limit: 8, Window: -9, Want: 300}),
		message("loan-reply", &LoanReply{Amount: 7, unused: 300, rate: 9}),
		message("shares",
			&shareReply{[]ShareUsage{{id: 1, Share: 300, Used: -1, Leased: 5, Lent: 2, Borrowed: 3, Remaining: 4}}}),
		message("unspent-question", &unspentQuestion{subject: 1, boot: 2}),
		message("unspent",
			&unspentReport{localcache.Unspent{LastGrant: 9,
				Held: []localcache.HeldGrant{{ID: 8, Left: []int64{300, 0}}}}}),
		message("places", &passedPlaces{
			places: []*QueuePlace{{taken: []refund{{takenCosts: taken}}}}, next: []ring.NodeID{{1}, {2, 3}},
		}),
		message("forgetting", &forgetMessage{subject: 1, refusalsOnly: true}),
		message("change", someChange()),
		message("change-charge",
			&change{verb: verbCharge, hops: 1, ops: someOps()[:2], ticket: ticketOf("x", 1<<48-1, 0), madeAt: 9}),
		message("change-clear", &change{verb: verbClear, hops: 1, inlineSubject: 7, ticket: ticketOf("x", 5, 0)}),
		message("counters", &counterIDs{1, 1 << 63}),
		message("results",
			&results{{result{Decision: algorithms.Decision{Used: 5}},
				leasedPart{units: 3, estimated: true}, -7,
				heldSlots{all: 1, list: []Holder{{ID: 1, Slots: 2, Age: 3, Expires: 4, Who: "w"}}}}}),
		message("settling", &settleRequest{signedID: "id", hops: 1, costs: []UnitCost{{"tokens", 9}}}),
		message("settlement", &Settlement{Remaining: -1, Repeated: true, Costs: []UnitCost{{"tokens", 9}}}),
		message("reserve", &reserveRequest{
			query: &Query{Rule: "r", Costs: []UnitCost{{"tokens", 9}}}, ttl: time.Second,
			ticket: ticketOf("x", 5, 0), version: 7, hops: 1,
		}),
		message("reserve-inline", &reserveRequest{
			query: &Query{Subjects: []Subject{{
				InlineSubject: rules.InlineSubject{Namespace: "n", Key: []string{"k"}, Exact: true,
					Limits: []document.InlineLimit{{Limit: 300, Per: "1m", PerMS: 7, Unit: "tokens", From: "first"}}},
				Costs: []UnitCost{{"tokens", 9}}, Mode: counters.CountMode,
			}}}, ticket: ticketOf("x", 5, 0), hops: 1,
		}),
		message("reserve-count",
			&reserveRequest{query: &Query{Rule: "r", Mode: counters.CountMode}, ticket: ticketOf("x", 5, 0), hops: 1}),
		message("acquire", &acquireRequest{
			query:  &Query{Rule: "r", ByKey: true, Key: []string{"k"}, Slots: 2, SlotTTL: time.Second, Who: "w"},
			ticket: ticketOf("x", 5, 0), version: 7, hops: 1,
		}),
		message("acquired", &acquireReply{expires: 999 * time.Millisecond, isRepetition: true,
			answer: keptAnswer{allowed: true, decidedBy: ByOwner, limits: []keptLimit{{counter: 7}}, id: []byte{1, 2}}}),
		message("slot", &slotRequest{verb: slotRenew, hops: 1, id: 1, nonce: 2, mayRestore: true, list: []slotPart{{
			SlotPart: counters.SlotPart{Key: counters.Key{Subject: 1, Counter: 2}, Units: 3, TTL: time.Second, Group: 4},
			holdFor:  time.Second, shadow: true,
		}}}),
		message("slot-released", &slotResult{units: 3, stays: true}),
		message("answer",
			&keptAnswer{allowed: true, decidedBy: ByOwner, limits: []keptLimit{{counter: 7}}, id: []byte{1, 2}}),
		message("top",
			&top.Part{Subjects: []top.Subject{{Rule: "r", Key: []string{"a", ""}, Count: 5, Checks: 900,
				Recent: 3, Used: 4, Limit: 5}}}),
		message("activity",
			&NodeActivity{Boot: 7, Uptime: time.Hour, Vitals: Vitals{1, 2, 3, 4, 5, 6},
				Checks: counts, Rules: []RuleCounts{{Rule: "r", Checks: counts}}}),
		message("use", &useReport{counted: RuleUseWindow, silent: 1, rules: []usedRule{{"login", 1204}}}),
	}
	var lines []golden.Line
	for _, m := range messages {
		lines = append(lines, golden.Line{Name: m.name, Bytes: m.bytes})
	}
	for i, b := range golden.Check(t, "testdata/messages.txt", lines...) {
		if err := messages[i].read(b); err != nil {
			t.Errorf("%s: %v", messages[i].name, err)
		}
	}
}
