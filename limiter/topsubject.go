package limiter

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
)

const (
	maxTop = 1000 // bounds the subjects that Top returns
	// maxTopKept bounds the subjects in one node's list: all that the node keeps.
	maxTopKept = topStripes * topCapacity
	// maxTopBytes bounds a node's list in a message. The last subjects are dropped.
	maxTopBytes = 4 << 20
	maxKeyParts = 32
)

// TopBy names one of the lists of subjects.
type TopBy uint8

// The lists of subjects.
const (
	TopRefused TopBy     = iota
	TopShadow            // would be refused if the rule were not a shadow rule
	TopUsed              // checks that were admitted
	TopDelayed           // checks that were allowed after a delay
	TopNear              // nearest to a limit
	topKinds   = TopNear // the lists that count events
)

// TopOptions say which subjects to list.
type TopOptions struct {
	By     TopBy
	Recent bool   // by the last five minutes; not for TopNear
	Rule   string // only of this rule; empty for all
	N      int    // how many, at most 1,000
}

// TopSubject is a subject with the events that put it into a list. Count is the
// number of these events since the subject entered the list. It may be too high
// by the count of the subject that was replaced.
type TopSubject struct {
	Rule  string
	Key   []string
	Count int64
	// Checks is the number of checks since the subject entered the list, plus those
	// that the refusing counter held before. It is at least Count.
	Checks int64
	// Recent is the number of events in the last five minutes, to within half a
	// minute.
	Recent int64
	// Used and Limit are of the subject's tightest limit after its last check, for
	// TopNear; 0 in other lists.
	Used, Limit int64
}

// rank sorts subjects and returns the first ones.
func rank(all []TopSubject, o TopOptions) []TopSubject {
	n := max(o.N, 0)
	switch {
	case o.By == TopNear:
		return rankByNear(all, n)
	case o.Recent:
		return rankByRecent(all, n)
	}
	return rankByCount(all, n)
}

// rankByCount sorts all, those with most events first, and returns the first n.
func rankByCount(all []TopSubject, n int) []TopSubject {
	slices.SortFunc(all, func(a, b TopSubject) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Rule, b.Rule), slices.Compare(a.Key, b.Key))
	})
	return all[:min(n, len(all))]
}

// rankByRecent sorts all, those with most events in the last five minutes
// first, and returns the first n.
func rankByRecent(all []TopSubject, n int) []TopSubject {
	all = rankByCount(all, len(all))
	slices.SortStableFunc(all, func(a, b TopSubject) int { return cmp.Compare(b.Recent, a.Recent) })
	return all[:min(n, len(all))]
}

// rankByNear sorts all, nearest to their limit first, and returns the first n.
func rankByNear(all []TopSubject, n int) []TopSubject {
	slices.SortFunc(all, func(a, b TopSubject) int {
		return cmp.Or(compareNear(b.Used, b.Limit, a.Used, a.Limit), cmp.Compare(a.Rule, b.Rule),
			slices.Compare(a.Key, b.Key))
	})
	return all[:min(n, len(all))]
}

func nearer(a, b *TopSubject) bool { return isNearer(a.Used, a.Limit, b.Used, b.Limit) }

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
	aHi, aLo := bits.Mul64(uint64(max(used, 0)), uint64(otherLimit))
	bHi, bLo := bits.Mul64(uint64(max(otherUsed, 0)), uint64(limit))
	return cmp.Or(cmp.Compare(aHi, bHi), cmp.Compare(aLo, bLo))
}

// mergeSubjects adds up the counts of several nodes for the same subject.
func mergeSubjects(all []TopSubject) []TopSubject {
	at := make(map[string]int, len(all))
	out := all[:0]
	for _, subj := range all {
		// The encoded lengths keep different keys from looking alike.
		name := string(wire.AppendTexts(wire.AppendText(nil, subj.Rule), subj.Key))
		if i, ok := at[name]; ok {
			out[i].Count += subj.Count
			out[i].Checks += subj.Checks
			out[i].Recent += subj.Recent
			if nearer(&subj, &out[i]) {
				out[i].Used, out[i].Limit = subj.Used, subj.Limit
			}
			continue
		}

		at[name] = len(out)
		out = append(out, subj)
	}

	return out
}

// truncateToMessage returns the leading part of list that fits a message.
func truncateToMessage(list []TopSubject) *topList {
	size := 0
	for i := range list {
		size += len(list[i].Rule) + len(strings.Join(list[i].Key, "")) + 64
		if size > maxTopBytes {
			return &topList{list[:i]}
		}
	}
	return &topList{list}
}

// topList is the reply to MethodTop.
type topList struct{ list []TopSubject }

// Code implements wire.Message.
func (list *topList) Code(c *wire.Coder) {
	wire.List(c, &list.list, maxTopKept, 7, func(subj *TopSubject) { subj.code(c) })
}

func (subj *TopSubject) code(c *wire.Coder) {
	const maxTopText = 1 << 20
	c.Text(&subj.Rule, maxTopText)
	subj.Rule = strings.ToValidUTF8(subj.Rule, "\uFFFD")
	c.Texts(&subj.Key, maxKeyParts, maxTopText)
	for _, n := range []*int64{&subj.Count, &subj.Checks, &subj.Recent, &subj.Used, &subj.Limit} {
		wire.Number(c, n, 1<<62)
	}
}
