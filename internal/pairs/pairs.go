// Package pairs lists what may happen to a cluster while a fault lasts. Whole
// nodes on virtual time (node) and real processes (faults) go through the same
// list.
package pairs

import (
	"hash/fnv"
	"math/rand/v2"
	"strings"
)

// Pair is a lasting fault, and an event during it.
//
// The fault is a link or a disk. "link-both:owner-standby" is cut in both
// directions; with "link-out" the second node receives nothing from the first,
// with "link-in" the first nothing from the second. "disk-hung:leader" and
// "disk-full:owner" name the disk's node. The ends of a move are called from
// and to; their link is cut while partitions move.
//
// The event is "kill:" and a role, or one of the words "write", "join", "leave", "restart".
type Pair struct{ Fault, Event string }

func (p Pair) String() string { return p.Fault + "×" + p.Event }

// SplitFault splits the fault into its kind and place.
func (p Pair) SplitFault() (what, where string) {
	what, where, _ = strings.Cut(p.Fault, ":")
	return what, where
}

// SplitEvent splits the event into its kind and the role it hits; an empty role means any node.
func (p Pair) SplitEvent() (what, role string) {
	what, role, _ = strings.Cut(p.Event, ":")
	return what, role
}

// Number returns a number for the pair, so that runs of different pairs with one seed differ.
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

// Choose picks n pairs. Consecutive seeds pick different ones, until all have been picked.
func Choose(seed uint64, n int, of []Pair) (list []Pair) {
	order := rand.New(rand.NewPCG(15, 15)).Perm(len(of))
	for i := range min(n, len(of)) {
		list = append(list, of[order[(seed%uint64(len(of))*uint64(n)+uint64(i))%uint64(len(of))]])
	}
	return list
}
