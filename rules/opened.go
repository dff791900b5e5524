package rules

import "slices"

// Opened is what a process knows about when its region had certainly not honoured a version yet. The zero value knows
// nothing, as a process that has just begun does. It is not safe for concurrent use.
//
// A region honours a version when all of its nodes that may have authority have applied it. So a process that has authority
// and has not applied a version proves, by that, that its region has not honoured it. Having applied it late proves nothing:
// a node without authority is not waited for.
type Opened struct {
	newest int64           // no version up to it is new
	at     map[int64]int64 // of the versions in the last set: see View.Open
}

// Note returns set, which the process is about to apply, with what is known of its versions. now is the process's wall
// clock, Unix nanoseconds, if it had authority when, or after, the clock was read; else 0. The process must not have told
// anybody before that it goes by set.
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
		known = known || open != 0 && (v.At == 0 || v.Doubtful) // of others it doesn't matter
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
