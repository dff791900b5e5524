// Package pairs lists what may happen to a cluster while something stays broken. Whole nodes on virtual time (node)
// and real processes (faults) go through the same list.
package pairs

import (
	"hash/fnv"
	"math/rand/v2"
	"strings"
)

// Pair is a fault that lasts, and what happens meanwhile.
//
// The fault is a link or a disk: "link-both:owner-standby" is cut in both directions; of "link-out" the second does not hear
// the first, of "link-in" the first does not hear the second. "disk-hung:leader" and "disk-full:owner" say whose disk it is. The
// ends of a move are called from and to, and the cut is made while partitions move.
//
// The event is "kill:" and a role, or a word: of "write", "join", "leave", "restart".
type Pair struct{ Fault, Event string }

func (p Pair) String() string { return p.Fault + "×" + p.Event }

// Broken splits the fault into what it is and where.
func (p Pair) Broken() (what, where string) {
	what, where, _ = strings.Cut(p.Fault, ":")
	return what, where
}

// Happens splits the event into what it is and to whom; role is empty if that is open.
func (p Pair) Happens() (what, role string) {
	what, role, _ = strings.Cut(p.Event, ":")
	return what, role
}

// Number tells pairs apart, so that with one seed not all go alike.
func (p Pair) Number() uint64 {
	h := fnv.New64a()
	h.Write([]byte(p.String()))
	return h.Sum64()
}

// All lists the pairs.
func All() (all []Pair) {
	var faults []string
	for _, way := range []string{"both", "out", "in"} {
		for _, ends := range []string{"leader-follower", "owner-standby", "from-to"} {
			faults = append(faults, "link-"+way+":"+ends)
		}
	}
	for _, how := range []string{"hung", "full"} {
		for _, whose := range []string{"leader", "owner"} {
			faults = append(faults, "disk-"+how+":"+whose)
		}
	}
	for _, f := range faults {
		for _, role := range []string{"leader", "owner", "standby", "from", "to"} {
			all = append(all, Pair{f, "kill:" + role})
		}
		for _, e := range []string{"write", "join", "leave", "restart"} {
			all = append(all, Pair{f, e})
		}
	}
	return all
}

// Choose takes n of some pairs. Seeds that follow each other take others, until it was every pair's turn.
func Choose(seed uint64, n int, of []Pair) (list []Pair) {
	order := rand.New(rand.NewPCG(15, 15)).Perm(len(of))
	for i := range min(n, len(of)) {
		list = append(list, of[order[(seed%uint64(len(of))*uint64(n)+uint64(i))%uint64(len(of))]])
	}
	return list
}
