package limiter

import (
	"reflect"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
)

// What is written is read as it was.
func TestFarMessages(t *testing.T) {
	n := named{version: 7, rule: "r", key: []string{"", "x", strings.Repeat("y", maxValueBytes)}}
	if have, err := readNamed(n.append(nil)); err != nil || !reflect.DeepEqual(have, n) {
		t.Errorf("have %+v, %v", have, err)
	}
	r := loanRequest{named: n, limit: 1 << 63, window: -3, want: algorithms.MaxAmount}
	if have, err := readLoanRequest(r.append(nil)); err != nil || !reflect.DeepEqual(have, r) {
		t.Errorf("have %+v, %v", have, err)
	}
	for _, r := range []loanReply{{loanMade, 1, 2, 3}, {loanNothing, 0, 5, 6}, {status: loanLater}, {status: loanUnknown}} {
		if have, err := readLoanReply(r.append(nil)); err != nil || have != r {
			t.Errorf("have %+v, %v, want %+v", have, err, r)
		}
	}
	list := []sharedLimit{{1 << 63, 300, 200, 100, 50, 100}, {}}
	if have, err := readShared(appendShared(nil, list)); err != nil || !reflect.DeepEqual(have, list) {
		t.Errorf("have %+v, %v", have, err)
	}
}

// What can't be is not read, however long it says to be.
func TestBadFarMessages(t *testing.T) {
	long := named{rule: strings.Repeat("r", maxRuleBytes+1)}
	wide := named{key: make([]string, maxNamedKey+1)}
	deep := named{key: []string{strings.Repeat("v", maxValueBytes+1)}}
	for name, n := range map[string]named{"rule": long, "key": wide, "value": deep} {
		if have, err := readNamed(n.append(nil)); err == nil {
			t.Errorf("%s: have %+v", name, have)
		}
	}
	good := (&loanRequest{named: named{rule: "r", key: []string{"x"}}, want: 1}).append(nil)
	for i := range good {
		if have, err := readLoanRequest(good[:i]); err == nil {
			t.Errorf("cut at %d: have %+v", i, have)
		}
	}
	if have, err := readLoanRequest(append(good, 0)); err == nil {
		t.Errorf("longer: have %+v", have)
	}
	for _, r := range []loanReply{{status: loanMade}, {status: loanNothing, amount: 1}, {status: loanStatuses}, {loanMade, 1 << 62, 0, 0}} {
		if have, err := readLoanReply(r.append(nil)); err == nil {
			t.Errorf("have %+v", have)
		}
	}
	if have, err := readShared(appendShared(nil, make([]sharedLimit, maxShared+1))); err == nil {
		t.Errorf("have %d limits", len(have))
	}
	if have, err := readShared([]byte{16}); err == nil {
		t.Errorf("have %d limits of nothing", len(have))
	}
}

func FuzzFarMessages(f *testing.F) {
	f.Add((&loanRequest{named: named{version: 1, rule: "r", key: []string{"x"}}, limit: 5, window: 9, want: 1}).append(nil))
	f.Add((&loanReply{status: loanMade, amount: 1, unused: 2, rate: 3}).append(nil))
	f.Add(appendShared(nil, []sharedLimit{{1, 2, 3, 4, 5, 6}}))
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := readLoanRequest(body); err == nil {
			again, err := readLoanRequest(r.append(nil))
			if err != nil || !reflect.DeepEqual(again, r) || r.want < 1 || r.want > algorithms.MaxAmount {
				t.Errorf("have %+v, then %+v, %v", r, again, err)
			}
		}
		if r, err := readLoanReply(body); err == nil {
			if again, err := readLoanReply(r.append(nil)); err != nil || again != r || r.amount > algorithms.MaxAmount {
				t.Errorf("have %+v, then %+v, %v", r, again, err)
			}
		}
		if list, err := readShared(body); err == nil {
			if again, err := readShared(appendShared(nil, list)); err != nil || !reflect.DeepEqual(again, list) || len(list) > maxShared {
				t.Errorf("have %+v, then %+v, %v", list, again, err)
			}
		}
		_, _ = readNamed(body)
	})
}
