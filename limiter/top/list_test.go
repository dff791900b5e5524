package top

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// key is the key of the subject of any hit.
type key []string

// CopySubjectKey implements KeySource.
func (k key) CopySubjectKey(to *Key, _ *rules.Hit) { to.Set(k) }

// On a Zipf stream of a million subjects, spread over three nodes, each node by
// itself and all together find the 20 subjects refused most, in order and in
// bounded memory.
func TestTopOfAMillion(t *testing.T) {
	t.Parallel()
	const subjects, stream, nodes, shown = 1_000_000, 1_500_000, 3, 20
	rng := rand.New(rand.NewPCG(7, 11))
	zipf := rand.NewZipf(rng, 1.07, 1, subjects-1)
	rule := &rules.Rule{Name: "r"}
	kept := make([]*List, nodes)
	refused := make([][]int64, nodes) // by subject
	for i := range kept {
		kept[i], refused[i] = NewList(), make([]int64, subjects)
	}
	hash := func(n uint64) rules.Hash { // spread like real subjects
		r := rand.NewPCG(n, 1)
		return rules.Hash{Hi: r.Uint64(), Lo: r.Uint64()}
	}
	names := make([]string, subjects)
	subjectKey := make(key, 1)
	for i := range stream {
		n := zipf.Uint64()
		if names[n] == "" {
			names[n] = fmt.Sprint(n)
		}
		subjectKey[0] = names[n]
		kept[i%nodes].Record(&rules.Hit{Rule: rule, Subject: hash(n)}, true, 0, subjectKey)
		refused[i%nodes][n]++
	}
	var all []Subject
	for i, list := range kept {
		for j := range list.stripe {
			stripe := &list.stripe[j]
			if len(stripe.entries) != capacity || len(stripe.index) != capacity {
				t.Errorf("node %d: stripe %d holds %d entries and an index of %d", i, j,
					len(stripe.entries), len(stripe.index))
			}
		}
		part, err := readPart(wire.Encode(nil, NewPart(Refused, list.Subjects())))
		if err != nil || len(part.Subjects) != maxKept {
			t.Fatalf("node %d: have %d subjects, %v, want %d", i, len(part.Subjects), err, maxKept)
		}
		expectLargest(t, Rank(slices.Clone(part.Subjects), Options{N: shown}), refused[i])
		all = append(all, part.Subjects...)
	}
	for _, other := range refused[1:] {
		for n := range other {
			refused[0][n] += other[n]
		}
	}
	expectLargest(t, Rank(Merge(all), Options{N: shown}), refused[0])
}

// expectLargest checks that have holds the subjects refused most, in order, with their true counts.
func expectLargest(t *testing.T, have []Subject, refused []int64) {
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

// A subject that replaces another in the list starts with no recent refusals,
// whatever the other one had.
func TestRecentOfAnotherSubject(t *testing.T) {
	var s listStripe
	s.entries = append(s.entries, listEntry{intervalsAtEntry: 0})
	s.counts[0] = 7
	for range recentIntervals + 3 {
		s.countsAtInterval[s.intervals%recentIntervals] = s.counts
		s.intervals++
	}
	expect.Equal(t, s.recent(0), 0, "s.recent(0)")
	s.entries[0] = listEntry{intervalsAtEntry: s.intervals, countAtEntry: 7} // as insert does
	s.counts[0] += 2
	expect.Equal(t, s.recent(0), 2, "s.recent(0)")
}

// The filter of the subjects refused most keeps inline subjects apart.
func TestInlineSubjectsInTheFilter(t *testing.T) {
	type spot struct {
		at  int
		bit uint64
	}
	spots := map[spot]bool{}
	for range 100_000 {
		at, bit := filterBit(rules.Hash{Lo: counters.InlineCounter(rand.Uint64())})
		spots[spot{at, bit}] = true
	}
	expect.Equal(t, len(spots), filterWords*64, "places")
}

// A list that many subjects pass through allocates for none of them.
func TestRecordAllocatesNothing(t *testing.T) {
	list, near := NewList(), NewNearLimits()
	hit := &rules.Hit{Rule: &rules.Rule{Name: "r"}}
	var keys KeySource = &key{"198.51.100.7"}
	pass := func() {
		hit.Subject = rules.Hash{Hi: hit.Subject.Hi + 1, Lo: hit.Subject.Lo + 1}
		list.Record(hit, true, 3, keys)
		list.Record(hit, false, 0, keys)
		near.Note(hit, Nearness{Used: int64(hit.Subject.Lo), Limit: 1 << 40, ResetAfter: 1}, 1, keys)
	}
	for range 4 * maxKept {
		pass()
	}
	expect.Equal(t, testing.AllocsPerRun(10_000, pass), 0, "allocations for a new subject")
}
