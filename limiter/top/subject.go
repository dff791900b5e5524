package top

import (
	"cmp"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
)

// MaxSubjects bounds the subjects that Rank returns.
const MaxSubjects = 1000

// By names one of the lists of subjects. Messages carry the number.
type By uint8

// The lists of subjects.
const (
	Refused    By     = iota
	Shadow            // would be refused if the rule were not a shadow rule
	Used              // checks that were admitted
	Delayed           // checks that were allowed after a delay
	Near              // nearest to a limit
	EventKinds = Near // how many lists count events: those before Near
)

// Options say which subjects to list.
type Options struct {
	By     By
	Recent bool   // by the last five minutes; not for Near
	Rule   string // only of this rule; empty for all
	N      int    // how many, at most MaxSubjects
}

// Subject is a subject with the events that put it into a list. Count is the
// number of these events since the subject entered the list. It may be too high
// by the count of the subject that was replaced.
type Subject struct {
	Rule  string
	Key   []string
	Count int64
	// Checks counts the subject's checks since it entered the list, plus priorChecks
	// of Record. It is at least Count.
	Checks int64
	// Recent is the number of events in the last five minutes, to within half a
	// minute.
	Recent int64
	// Used and Limit are of the limit of which the subject had the least left after
	// its last check, for Near; 0 in other lists.
	Used, Limit int64
}

// Rank sorts the subjects that o asks for, and returns the first ones. It
// reorders all.
func Rank(all []Subject, o Options) []Subject {
	if o.Rule != "" {
		all = slices.DeleteFunc(all, func(subj Subject) bool { return subj.Rule != o.Rule })
	}

	sortSubjects(all, o.By, o.Recent)
	n := max(0, min(o.N, MaxSubjects))
	return all[:min(n, len(all))]
}

// sortSubjects sorts by the order of a list. If recent is set, those with most
// events in the last five minutes come first.
func sortSubjects(all []Subject, by By, recent bool) {
	slices.SortFunc(all, func(a, b Subject) int {
		order := 0
		switch {
		case by == Near:
			order = compareNear(b.Used, b.Limit, a.Used, a.Limit)
		case recent:
			order = cmp.Or(cmp.Compare(b.Recent, a.Recent), cmp.Compare(b.Count, a.Count))
		default:
			order = cmp.Compare(b.Count, a.Count)
		}
		return cmp.Or(order, cmp.Compare(a.Rule, b.Rule), slices.Compare(a.Key, b.Key))
	})
}

// isNearer reports whether used is a larger part of limit than otherUsed is of
// otherLimit.
func isNearer(used, limit, otherUsed, otherLimit int64) bool {
	return compareNear(used, limit, otherUsed, otherLimit) > 0
}

// compareNear compares the used parts of two limits. A limit of 0 is used up.
func compareNear(used, limit, otherUsed, otherLimit int64) int {
	if limit <= 0 || otherLimit <= 0 {
		return cmp.Compare(otherLimit, limit)
	}

	used = max(used, 0)
	otherUsed = max(otherUsed, 0)
	switch {
	case algorithms.IsSmallerFraction(used, limit, otherUsed, otherLimit):
		return -1
	case algorithms.IsSmallerFraction(otherUsed, otherLimit, used, limit):
		return 1
	}
	return 0
}

// Merge adds up the counts of several nodes for the same subject. It reuses the
// memory of all.
func Merge(all []Subject) []Subject {
	at := make(map[string]int, len(all))
	out := all[:0]
	for _, subj := range all {
		// The encoded lengths keep different keys from looking alike.
		name := string(wire.AppendTexts(wire.AppendText(nil, subj.Rule), subj.Key))
		if i, ok := at[name]; ok {
			out[i].Count += subj.Count
			out[i].Checks += subj.Checks
			out[i].Recent += subj.Recent
			if isNearer(subj.Used, subj.Limit, out[i].Used, out[i].Limit) {
				out[i].Used, out[i].Limit = subj.Used, subj.Limit
			}
			continue
		}

		at[name] = len(out)
		out = append(out, subj)
	}

	return out
}
