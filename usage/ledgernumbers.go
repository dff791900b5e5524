package usage

import (
	"encoding/binary"
	"slices"
	"sort"
)

// maxMerged bounds how many ledgers a merged one names: each takes 8 bytes.
const maxMerged = 1 << 14

// ledgerNumbers are the numbers of ledgers of one node and month, in ascending
// order, 8 bytes each, big-endian. In JSON they are one base64 text.
type ledgerNumbers []byte

func (n ledgerNumbers) count() int { return len(n) / 8 }

func (n ledgerNumbers) at(i int) uint64 { return binary.BigEndian.Uint64(n[8*i:]) }

// isValid reports whether the numbers are ascending and not too many.
func (n ledgerNumbers) isValid() bool {
	if len(n)%8 != 0 || n.count() > maxMerged {
		return false
	}
	for i := 1; i < n.count(); i++ {
		if n.at(i-1) >= n.at(i) {
			return false
		}
	}
	return true
}

func (n ledgerNumbers) has(number uint64) bool {
	i := sort.Search(n.count(), func(i int) bool { return n.at(i) >= number })
	return i < n.count() && n.at(i) == number
}

// with returns the numbers of both.
func (n ledgerNumbers) with(other ledgerNumbers) ledgerNumbers {
	var all []uint64
	for _, list := range []ledgerNumbers{n, other} {
		for i := range list.count() {
			all = append(all, list.at(i))
		}
	}
	slices.Sort(all)

	var both ledgerNumbers
	for _, number := range slices.Compact(all) {
		both = binary.BigEndian.AppendUint64(both, number)
	}
	return both
}

// overlaps reports whether some number is in both.
func (n ledgerNumbers) overlaps(other ledgerNumbers) bool {
	for i := range n.count() {
		if other.has(n.at(i)) {
			return true
		}
	}
	return false
}
