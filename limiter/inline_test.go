package limiter

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// The filter of the subjects refused most keeps inline subjects apart.
func TestInlineSubjectsInTheFilter(t *testing.T) {
	type spot struct {
		at  int
		bit uint64
	}
	spots := map[spot]bool{}
	for range 100_000 {
		at, bit := filterPlace(rules.Hash{Lo: counters.InlineLo(rand.Uint64())})
		spots[spot{at, bit}] = true
	}
	if len(spots) != topFilter*64 {
		t.Errorf("have %d places, want %d", len(spots), topFilter*64)
	}
}

// Half of the kept answers may be about inline subjects. Beyond it only these find no room.
func TestInlineAnswersLeaveHalf(t *testing.T) {
	l, now := New(counters.New(1000), nil), algorithms.At(time.Unix(1_800_000_000, 0))
	keep := func(subject counters.Key, k requestKind) bool {
		return l.requests.makeRoom(l.table, k, ticketOf("", 1, time.Second).memo(subject, now), now)
	}
	inline, configured := counters.Key{Hi: 1, Lo: counters.InlineLo(1)}, counters.Key{Hi: 2, Lo: 2}
	for i := range maxRequests {
		if have := keep(inline, ofWrite); have != (i < maxRequests/2) {
			t.Fatalf("answer %d about an inline subject: have %v", i, have)
		}
	}
	for i := range maxRequests {
		if have := keep(configured, ofCheck); !have {
			t.Fatalf("there is no room for answer %d about a rule's subject", i)
		}
	}
	if keep(inline, ofNode) || !keep(configured, ofNode) || l.requests.count() != maxRequests {
		t.Errorf("have %d answers", l.requests.count())
	}
}

// Two ids never share an answer, although the memos of inline subjects keep less of them in their keys.
func TestInlineMemosKeepTheWholeID(t *testing.T) {
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	subject := counters.Key{Hi: 1, Lo: counters.InlineLo(1)}
	a, b := &ticket{id: 0x1234_5678_9abc_def0, body: 77}, &ticket{id: 0x1234_5678_8abc_def0, body: 77}
	x, y := a.memo(subject, now), b.memo(subject, now)
	if !x.Key.Inline() || x.Key != y.Key || x.Body == y.Body || x.Body >= 1<<counters.BodyBits {
		t.Errorf("have %+v and %+v", x, y)
	}
	if plain := a.memo(counters.Key{Hi: 1, Lo: 1}, now); plain.Key.Lo != a.id || plain.Body != a.body {
		t.Errorf("have %+v", plain)
	}
}

// What is recorded of settling a reservation is an inline counter exactly if the reservation's home is, also if nothing was
// taken there.
func TestInlineSettlementsAreInline(t *testing.T) {
	l := New(counters.New(1000), nil)
	limit := &rules.Limit{Limit: algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 5, Window: time.Minute}}
	for _, inline := range []bool{false, true} {
		for _, allowed := range []bool{false, true} {
			key := counters.Key{Hi: 1, Lo: 2}
			if inline {
				key.Lo = counters.InlineLo(key.Lo)
			}
			var a Answer
			a.scratch.match.Hits = []rules.Hit{{Rule: &rules.Rule{}, Subject: rules.Hash(key), Limits: []*rules.Limit{limit}}}
			a.scratch.ops = []counters.Op{{Key: key, Limit: &limit.Limit, Cost: 1, Decision: algorithms.Decision{Allowed: allowed}}}
			r := l.reservations.reservationOf(&Query{}, &a, time.Minute)
			sent, err := parseReservation(r.id([]byte("key")), []byte("key"))
			if err != nil {
				t.Fatal(err)
			}
			for unit := range 3 {
				if n := sent.note(unit); n.Inline() != inline || n != r.note(unit) || n.Hi != key.Hi || unit > 0 && n == r.note(unit-1) {
					t.Errorf("inline %v, allowed %v: unit %d is recorded under %x", inline, allowed, unit, n)
				}
			}
		}
	}
}
