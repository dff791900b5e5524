package limiter

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// On a Zipf stream of a million subjects, spread over three nodes, each node by
// itself and all together find the 20 subjects refused most, in order and in
// bounded memory.
func TestTopOfAMillion(t *testing.T) {
	t.Parallel()
	const subjects, stream, nodes, shown = 1_000_000, 1_500_000, 3, 20
	rng := rand.New(rand.NewPCG(7, 11))
	zipf := rand.NewZipf(rng, 1.07, 1, subjects-1)
	rule := compile(t, 1, "version: 1\nrules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1h}]}").Rule("r")
	tops := make([]*top, nodes)
	refused := make([][]int64, nodes) // by subject
	for i := range tops {
		tops[i], refused[i] = newTop(), make([]int64, subjects)
	}
	hash := func(n uint64) rules.Hash { // spread like real subjects
		r := rand.NewPCG(n, 1)
		return rules.Hash{Hi: r.Uint64(), Lo: r.Uint64()}
	}
	names := make([]string, subjects)
	q := &Query{Rule: "r", ByKey: true, Key: make([]string, 1)}
	for i := range stream {
		n := zipf.Uint64()
		if names[n] == "" {
			names[n] = fmt.Sprint(n)
		}
		q.Key[0] = names[n]
		tops[i%nodes].record(&rules.Hit{Rule: rule, Subject: hash(n)}, true, 0, q)
		refused[i%nodes][n]++
	}
	var all []TopSubject
	for i, kept := range tops {
		list, err := readTop(wire.Encode(nil, truncateToMessage(rankByCount(kept.list(), maxTopKept))))
		if err != nil || len(list) != topStripes*topCapacity {
			t.Fatalf("node %d: have %d subjects, %v, want %d", i, len(list), err, topStripes*topCapacity)
		}
		expectLargest(t, rankByCount(slices.Clone(list), shown), refused[i])
		all = append(all, list...)
	}
	for _, other := range refused[1:] {
		for n := range other {
			refused[0][n] += other[n]
		}
	}
	expectLargest(t, rankByCount(mergeSubjects(all), shown), refused[0])
}

// expectLargest checks that have holds the subjects refused most, in order, with their true counts.
func expectLargest(t *testing.T, have []TopSubject, refused []int64) {
	t.Helper()
	shown := map[int]bool{}
	for rank := range have {
		n, _ := strconv.Atoi(have[rank].Key[0])
		shown[n] = true
		if have[rank].Count != refused[n] {
			t.Errorf("rank %d: subject %d has %d refused, want %d", rank, n, have[rank].Count, refused[n])
		}
		if rank > 0 && have[rank].Count > have[rank-1].Count {
			t.Errorf("rank %d: %d is more than the rank before", rank, have[rank].Count)
		}
	}
	least := have[len(have)-1].Count
	for n, sum := range refused {
		if sum > least && !shown[n] {
			t.Errorf("subject %d with %d refused is not shown, one with %d is", n, sum, least)
		}
	}
}

func readTop(b []byte) ([]TopSubject, error) {
	list, err := read[topList](b)
	return list.list, err
}

// A list from another node is validated before it is used.
func TestReadTopOfStrangers(t *testing.T) {
	good := wire.Encode(nil, &topList{[]TopSubject{{Rule: "r", Key: []string{"a", "b"}, Count: 3, Checks: 4}}})
	for cut := range good {
		if list, err := readTop(good[:cut]); err == nil {
			t.Errorf("cut at %d: have %v, want an error", cut, list)
		}
	}
	if _, err := readTop(binary.AppendUvarint([]byte{1}, 1<<40)); err == nil {
		t.Error("a name of a terabyte: want an error")
	}
}
