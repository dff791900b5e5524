//go:build faults

package faults

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// monthReport is a node's report of this month.
type monthReport struct {
	Rows []struct {
		Rule string
		Cost int64
	}
	Incomplete []string
	Estimated  []struct {
		Node       string
		AtMostLost int64 `json:"at_most_lost_ms"`
	}
}

// billed returns the sum of a report, or why it is not as wanted: exact, or
// estimated because of one node.
func (n *node) billed(estimated string) (sum int64, lost time.Duration, why string) {
	var r monthReport
	if err := n.get("/v1/usage/monthly?rule=billed", &r); err != nil {
		return 0, 0, err.Error()
	}
	for _, row := range r.Rows {
		sum += row.Cost
	}
	switch {
	case len(r.Incomplete) > 0:
		return sum, 0, fmt.Sprintf("%v are missing", r.Incomplete)
	case estimated == "" && len(r.Estimated) > 0, estimated != "" &&
		(len(r.Estimated) != 1 || r.Estimated[0].Node != estimated):
		return sum, 0, fmt.Sprintf("have %v estimated, want %q", r.Estimated, estimated)
	case estimated != "":
		lost = time.Duration(r.Estimated[0].AtMostLost) * time.Millisecond
	}
	return sum, lost, ""
}

// bill makes checks at a node until the time is over, and returns when each was answered.
func (n *node) bill(t *testing.T, d time.Duration) (at []time.Time) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		status, _, _, err := n.call("POST", 8080, "/v1/check", `{"rule": "billed", "key": "k"}`, nil)
		if err != nil || status != 200 {
			t.Errorf("%s: check: %d %v", n.name, status, err)
			continue
		}
		at = append(at, time.Now())
	}
	return at
}

func since(list []time.Time, from time.Time) (n int64) {
	for _, at := range list {
		if at.After(from) {
			n++
		}
	}
	return n
}

// TestBillsOutliveANode: one node is killed under load, and another one after
// it was cut off from the others for a while. Both lose their disks and are
// removed. Their bills come from copies: never more than was admitted, and less
// by at most what the bill says.
func TestBillsOutliveANode(t *testing.T) {
	for name, cutFor := range map[string]time.Duration{"killed": 0, "cut off, and then killed": 8 * time.Second} {
		t.Run(name, func(t *testing.T) {
			f := emptyFleet(t, 3)
			t.Cleanup(f.close)
			f.open()
			f.write("version: 1\nrules:\n  - {name: billed, key: [user], usage: monthly, on_partition: allow, limits: [{limit: 100000000, per: 8760h, algorithm: fixed-window}]}\n")
			reader, lost := f.nodes[0], f.nodes[2]
			var at [][]time.Time
			for _, n := range f.nodes {
				at = append(at, n.bill(t, 3*time.Second))
			}
			if cutFor > 0 {
				f.cut(lost, false)
				at = append(at, lost.bill(t, cutFor))
			}
			killed := time.Now()
			lost.kill()
			if cutFor > 0 {
				f.net.heal()
			}
			expect.NoError(t, os.RemoveAll(lost.dir))
			within(t, time.Minute, lost.name+" is removed", func() string {
				if status, _, text, err := reader.call("DELETE", 8081, "/v1/members/"+lost.name, "",
					nil); err != nil || status >= 300 && status != 404 {
					return fmt.Sprint(status, text, err)
				}
				return ""
			})
			for _, n := range f.nodes[:2] {
				within(t, time.Minute, lost.name+" is billed from its copy at "+n.name, func() string {
					_, _, why := n.billed(lost.name)
					return why
				})
				sum, most, _ := n.billed(lost.name)
				admitted, mayLack := int64(0), int64(0)
				for _, list := range at {
					admitted += int64(len(list))
				}
				for _, list := range at[2:] {
					mayLack += since(list, killed.Add(-most-time.Second))
				}
				t.Logf("%s: have %d of %d, at most %v lost", n.name, sum, admitted, most)
				if sum > admitted || admitted-sum > mayLack || cutFor > 0 && most < cutFor {
					t.Errorf("%s: have %d of %d admitted, at most %v lost, which are %d", n.name,
						sum, admitted, most, mayLack)
				}
			}
		})
	}
}
