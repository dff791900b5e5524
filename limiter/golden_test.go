package limiter

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/internal/wire"
)

// TestGolden: messages are written and read as ever.
func TestGolden(t *testing.T) {
	key := []byte("key")
	limit := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 5, Burst: 9, Window: time.Second}
	taken := reserved{
		hi: 1, lineage: 2, process: 3, steady: 4, costs: []reservedCost{{lo: 5, limit: &limit, unit: 0, cost: 6, when: 7}},
		lo: 8, rule: "r", key: []string{"k", ""},
	}
	reservation := reservation{made: 1, until: 2, units: []string{"tokens"}, subjects: []reserved{taken}}
	all := algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 2, Window: time.Minute, MaxDelay: time.Second}
	ops := someOps()
	ops[3].Limit = &all
	given := gift{process: 1 << 63, steady: -5, ops: ops, lineage: []uint64{1, 0, 3, 4}, window: []int64{-7, 0, 9, 1}}
	counts := Counts{}
	counts[0][0], counts[1][1] = 7, 300
	messages := []struct {
		name  string
		bytes []byte
		read  func(b []byte) error
	}{
		{"question", someQuestion().appendBody(someQuestion().appendHead(nil)), func(b []byte) error { return new(question).read(b) }},
		{"reply", someReply().append(nil), func(b []byte) error { return new(reply).read(b, 4, 3, 5) }},
		{"not-mine", (&reply{status: notMine, revision: 5, version: 1}).append(nil), func(b []byte) error { return new(reply).read(b, 4, 3, 5) }},
		{"gift", given.append(nil), func(b []byte) error { return new(gift).read(b) }},
		{"leftovers", appendLeftovers(nil, someLeftovers()), func(b []byte) error { _, err := readLeftovers(b); return err }},
		{"reservation", []byte(reservation.id(key)), func(b []byte) error { _, err := parseReservation(string(b), key); return err }},
		{"refund", (&refund{made: 9, reserved: taken}).append(nil), func(b []byte) error { _, err := readRefund(b); return err }},
		{"named", (&named{version: 7, rule: "r", key: []string{"a", "b"}}).append(nil), func(b []byte) error { _, err := readNamed(b); return err }},
		{"loan-request", (&loanRequest{named: named{rule: "r"}, limit: 8, window: -9, want: 300}).append(nil),
			func(b []byte) error { _, err := readLoanRequest(b); return err }},
		{"loan-reply", (&loanReply{amount: 7, unused: 300, rate: 9}).append(nil), func(b []byte) error { _, err := readLoanReply(b); return err }},
		{"top", appendTop(nil, []TopSubject{{Rule: "r", Key: []string{"a", ""}, Refused: 5, Checks: 900}}), func(b []byte) error { _, err := readTop(b); return err }},
		{"activity", appendActivity(nil, NodeActivity{Process: 7, Uptime: time.Hour, Checks: counts, Rules: []RuleCounts{{Rule: "r", Checks: counts}}}),
			func(b []byte) error {
				if readActivity(b) == nil {
					return wire.ErrMalformed
				}
				return nil
			}},
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
