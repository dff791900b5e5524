//go:build faults

package faults

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// decision is a record: node decided between began and ended, as an owner.
type decision struct {
	node         int
	lineage      uint64
	began, ended int64
}

// The layout of a record, as the program writes it.
const (
	recordSize  = 32
	recordLimit = 1 << 21
	byOwner     = 4
)

// readRecords adds what a process of a node has recorded to decisions by partition.
func readRecords(path string, node int, to map[uint32][]decision) (n int, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	count := binary.NativeEndian.Uint64(b)
	if count > recordLimit {
		return 0, fmt.Errorf("%s: %d decisions, only %d were recorded", path, count, recordLimit)
	}
	for i := uint64(1); i <= count; i++ {
		r := b[i*recordSize:][:recordSize]
		if r[28] != byOwner || r[29] != 1 {
			continue // a standby's, or incomplete: the process ended before it could answer
		}
		p := binary.NativeEndian.Uint32(r[24:])
		d := decision{
			node: node, lineage: binary.NativeEndian.Uint64(r[16:]),
			began: int64(binary.NativeEndian.Uint64(r)), ended: int64(binary.NativeEndian.Uint64(r[8:])),
		}
		if d.began <= 0 || d.ended < d.began {
			return n, fmt.Errorf("%s: record %d: impossible times %d, %d", path, i, d.began, d.ended)
		}
		to[p] = append(to[p], d)
		n++
	}
	return n, nil
}

// move is a span in which tokens may change hands within one lineage: from the
// agreement on a ring until it is settled. In each, a partition moves at most
// once.
type move struct{ began, ended int64 }

// checkOwners looks for proof that a partition had two owners at once. A
// decision was made at some moment between its two times. So the order of two
// decisions with overlapping times is unknown and proves nothing: an owner may
// be stopped between its decision and the second reading of the clock. An
// impossible order is proof:
//
//   - a decision in one lineage, then one in another, then one in the first again: a lineage that ended never returns;
//   - one node, then another in the same lineage, without a move; or there and back in a single one.
func checkOwners(decisions []decision, moves []move) error {
	byLineage := map[uint64][]decision{}
	for _, d := range decisions {
		if d.lineage != 0 { // 0: the partition was handed over during the decision, so the lineage is unknown
			byLineage[d.lineage] = append(byLineage[d.lineage], d)
		}
	}
	var lineages []uint64
	for l, list := range byLineage {
		slices.SortFunc(list, func(a, b decision) int { return int(a.began - b.began) })
		lineages = append(lineages, l)
		if err := checkHands(list, moves); err != nil {
			return fmt.Errorf("lineage %x: %w", l, err)
		}
	}
	for i, l := range lineages {
		for _, m := range lineages[i+1:] {
			a, b := byLineage[l], byLineage[m]
			if !follows(a, b) && !follows(b, a) {
				return fmt.Errorf("lineages %x and %x interleave:\n%s\n%s", l, m, describe(a), describe(b))
			}
		}
	}
	return nil
}

// follows reports whether all of a may have been decided before all of b.
func follows(a, b []decision) bool {
	first := b[0].ended
	for _, d := range b {
		first = min(first, d.ended)
	}
	return a[len(a)-1].began <= first // sorted by began
}

// checkHands judges the decisions of one lineage, sorted by began.
func checkHands(list []decision, moves []move) error {
	// last is, for each node, its latest decision that ended before the present one began.
	byEnd := slices.Clone(list)
	slices.SortFunc(byEnd, func(a, b decision) int { return int(a.ended - b.ended) })
	last, judged := map[int]decision{}, map[[2]int]decision{}
	next := 0
	for _, d := range list {
		for ; next < len(byEnd) && byEnd[next].ended < d.began; next++ {
			e := byEnd[next]
			last[e.node] = e
		}
		// The other node's decision just before d, if it provably was before.
		for node, other := range last {
			pair := [2]int{node, d.node}
			if node == d.node || judged[pair] == other {
				continue // what holds for the first decision after other holds for all
			}
			judged[pair] = other
			if countMoves(moves, other.began, d.ended) < 1 {
				return fmt.Errorf("no ring was agreed on between\n%s\n%s",
					describe([]decision{other}), describe([]decision{d}))
			}
			// And a decision of d's node before that: its latest one that ended before other began.
			if first, ok := lastBefore(byEnd[:next], d.node, other.began); ok &&
				countMoves(moves, first.began, d.ended) < 2 {
				return fmt.Errorf("there and back in one ring:\n%s", describe([]decision{first, other, d}))
			}
		}
	}
	return nil
}

// lastBefore is node's last decision in list, sorted by ended, that ended before at.
func lastBefore(list []decision, node int, at int64) (decision, bool) {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].node == node && list[i].ended < at {
			return list[i], true
		}
	}
	return decision{}, false
}

func countMoves(moves []move, from, to int64) (n int) {
	for _, m := range moves {
		if m.began <= to && from <= m.ended {
			n++
		}
	}
	return n
}

// describe lists the first and the last decisions.
func describe(list []decision) string {
	var b strings.Builder
	for i, d := range list {
		if i < 3 || i >= len(list)-3 {
			fmt.Fprintf(&b, "  node %d lineage %x from %d to %d (%v)\n", d.node+1, d.lineage,
				d.began, d.ended, time.Duration(d.ended-d.began))
		}
	}
	return b.String()
}

func TestCheckOwners(t *testing.T) {
	d := func(node int, lineage uint64, began, ended int64) decision {
		return decision{node, lineage, began, ended}
	}
	for _, test := range []struct {
		name  string
		have  []decision
		moves []move
		wrong string // part of the error; empty for none
	}{
		{"one owner", []decision{d(0, 1, 1, 2), d(0, 1, 3, 4)}, nil, ""},
		{"promoted", []decision{d(0, 1, 1, 2), d(1, 2, 3, 4)}, nil, ""},
		{"promoted while the old one was stopped after its decision",
			[]decision{d(0, 1, 1, 9), d(1, 2, 3, 4), d(1, 2, 5, 6)}, nil, ""},
		{"decided after its successor", []decision{d(0, 1, 1, 2), d(1, 2, 3, 4), d(0, 1, 5, 6)}, nil, "interleave"},
		{"decided after its successor, who began before",
			[]decision{d(1, 2, 3, 4), d(0, 1, 5, 6), d(1, 2, 7, 8)}, nil, "interleave"},
		{"both all the time",
			[]decision{d(0, 1, 1, 4), d(1, 2, 2, 3), d(0, 1, 5, 8), d(1, 2, 6, 7)}, nil, "interleave"},
		{"handed over", []decision{d(0, 1, 1, 2), d(1, 1, 5, 6)}, []move{{3, 4}}, ""},
		{"handed over, the old one's last answer late", []decision{d(0, 1, 1, 7), d(1, 1, 5, 6)}, []move{{3, 4}}, ""},
		{"two owners without a ring", []decision{d(0, 1, 1, 2), d(1, 1, 5, 6)}, []move{{7, 8}}, "no ring"},
		{"there and back in one ring", []decision{d(0, 1, 1, 2), d(1, 1, 4, 5), d(0, 1, 6, 7)},
			[]move{{1, 9}}, "there and back"},
		{"there and back in two rings", []decision{d(0, 1, 1, 2), d(1, 1, 4, 5), d(0, 1, 7, 8)},
			[]move{{3, 4}, {6, 7}}, ""},
		{"restarted, and back", []decision{d(0, 1, 1, 2), d(0, 2, 3, 4), d(0, 1, 5, 6)}, nil, "interleave"},
		{"not known whose", []decision{d(0, 1, 1, 2), d(1, 2, 3, 4), d(0, 0, 5, 6)}, nil, ""},
	} {
		err := checkOwners(test.have, test.moves)
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: have %v, want %q", test.name, err, test.wrong)
		}
	}
}
