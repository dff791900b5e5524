package rules

import "slices"

// Opened records when a process's region had certainly not honoured a version yet. The zero value, for a process that
// has just started, knows nothing. It is not safe for concurrent use.
//
// A region honours a version when all of its nodes that may have authority have applied it. So a process that has
// authority and has not applied a version thereby proves that its region has not honoured it. Applying it late proves
// nothing, because nodes without authority are not waited for.
type Opened struct {
	newest int64           // versions up to it are not new
	at     map[int64]int64 // View.Open of the versions in the last set
}

// Note returns set, which the process is about to apply, with what is known about its versions. now is the process's
// wall clock in Unix nanoseconds if the process had authority when it read the clock, or later; otherwise 0. The
// process must not have announced set as applied before the call.
func (o *Opened) Note(set *Set, now int64) *Set {
	x := set.shares
	if x == nil {
		return set
	}
	at, newest, known := make(map[int64]int64, len(x.Views)), o.newest, false
	for _, v := range x.Views {
		n := v.Set.Version
		open, seen := o.at[n]
		if !seen && n > o.newest {
			open = now
		}
		at[n], newest = open, max(newest, n)
		known = known || open != 0 && (v.At == 0 || v.Doubtful) // for the other versions it doesn't matter
	}
	o.at, o.newest = at, newest
	if !known {
		return set
	}
	dated := &Shares{Region: x.Region, Views: slices.Clone(x.Views)}
	for i := range dated.Views {
		dated.Views[i].Open = at[dated.Views[i].Set.Version]
	}
	return set.WithShares(dated)
}
