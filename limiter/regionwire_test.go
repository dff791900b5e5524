package limiter

import (
	"reflect"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
)

func read[T any, M interface {
	*T
	wire.Message
}](b []byte) (v T, err error) {
	return v, wire.Decode(b, M(&v), "it")
}

// A message survives encoding and decoding.
func TestFarMessages(t *testing.T) {
	n := subjectRef{version: 7, Rule: "r", Key: []string{"", "x", strings.Repeat("y", maxValueBytes)}}
	if have, err := read[subjectRef](wire.Encode(nil, &n)); err != nil || !reflect.DeepEqual(have, n) {
		t.Errorf("have %+v, %v", have, err)
	}
	r := LoanRequest{subjectRef: n, limit: 1 << 63, Window: -3, Want: algorithms.MaxAmount}
	if have, err := read[LoanRequest](wire.Encode(nil, &r)); err != nil || !reflect.DeepEqual(have, r) {
		t.Errorf("have %+v, %v", have, err)
	}
	for _, r := range []LoanReply{{loanMade, 1, 2, 3}, {loanNothing, 0, 5, 6}, {status: loanLater},
		{status: loanUnknown}} {
		if have, err := read[LoanReply](wire.Encode(nil, &r)); err != nil || have != r {
			t.Errorf("have %+v, %v, want %+v", have, err, r)
		}
	}
	list := shareReply{[]ShareUsage{{id: 1 << 63, Share: 300, Used: 200, Lent: 100, Borrowed: 50, Remaining: 100}, {}}}
	if have, err := read[shareReply](wire.Encode(nil, &list)); err != nil || !reflect.DeepEqual(have, list) {
		t.Errorf("have %+v, %v", have, err)
	}
}

// An invalid message is rejected, whatever length it claims.
func TestBadFarMessages(t *testing.T) {
	long := subjectRef{Rule: strings.Repeat("r", maxRuleBytes+1)}
	wide := subjectRef{Key: make([]string, maxKeyValues+1)}
	deep := subjectRef{Key: []string{strings.Repeat("v", maxValueBytes+1)}}
	for name, n := range map[string]subjectRef{"rule": long, "key": wide, "value": deep} {
		if have, err := read[subjectRef](wire.Encode(nil, &n)); err == nil {
			t.Errorf("%s: have %+v", name, have)
		}
	}
	good := wire.Encode(nil, &LoanRequest{subjectRef: subjectRef{Rule: "r", Key: []string{"x"}}, Want: 1})
	for i := range good {
		if have, err := read[LoanRequest](good[:i]); err == nil {
			t.Errorf("cut at %d: have %+v", i, have)
		}
	}
	if have, err := read[LoanRequest](append(good, 0)); err == nil {
		t.Errorf("longer: have %+v", have)
	}
	for _, r := range []LoanReply{{status: loanMade}, {status: loanNothing, Amount: 1},
		{status: loanStatuses}, {loanMade, 1 << 62, 0, 0}} {
		if have, err := read[LoanReply](wire.Encode(nil, &r)); err == nil {
			t.Errorf("have %+v", have)
		}
	}
	if have, err := read[shareReply](wire.Encode(nil, &shareReply{make([]ShareUsage, maxShares+1)})); err == nil {
		t.Errorf("have %d limits", len(have.limits))
	}
	if have, err := read[shareReply]([]byte{16}); err == nil {
		t.Errorf("have %d limits of nothing", len(have.limits))
	}
}

func FuzzFarMessages(f *testing.F) {
	f.Add(wire.Encode(nil,
		&LoanRequest{subjectRef: subjectRef{version: 1, Rule: "r", Key: []string{"x"}}, limit: 5, Window: 9, Want: 1}))
	f.Add(wire.Encode(nil, &LoanReply{status: loanMade, Amount: 1, unused: 2, rate: 3}))
	f.Add(wire.Encode(nil, &shareReply{[]ShareUsage{{id: 1, Share: 2, Used: 3, Lent: 4, Borrowed: 5, Remaining: 6}}}))
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := read[LoanRequest](body); err == nil {
			again, err := read[LoanRequest](wire.Encode(nil, &r))
			if err != nil || !reflect.DeepEqual(again, r) || r.Want < 1 || r.Want > algorithms.MaxAmount {
				t.Errorf("have %+v, then %+v, %v", r, again, err)
			}
		}
		if r, err := read[LoanReply](body); err == nil {
			if again, err := read[LoanReply](wire.Encode(nil, &r)); err != nil || again != r ||
				r.Amount > algorithms.MaxAmount {
				t.Errorf("have %+v, then %+v, %v", r, again, err)
			}
		}
		if list, err := read[shareReply](body); err == nil {
			if again, err := read[shareReply](wire.Encode(nil, &list)); err != nil ||
				!reflect.DeepEqual(again, list) || len(list.limits) > maxShares {
				t.Errorf("have %+v, then %+v, %v", list, again, err)
			}
		}
		_, _ = read[subjectRef](body)
	})
}
