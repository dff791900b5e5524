package usage

import "sync/atomic"

// index finds the rows of a ledger by their hashes: open addressing, read without a lock while it is written to. An entry
// has the upper half of a hash's first word, and the row's offset in units of 8 bytes; 0 is none.
type index struct {
	slots []atomic.Uint64 // a power of two, at most three quarters full
	count int             // guarded by the ledger's mu
}

const leastSlots = 1 << 10

func newIndex(slots int) *index { return &index{slots: make([]atomic.Uint64, slots)} }

// find is the row of a hash in data; nil: there is none, or it is just being entered.
func (x *index) find(data []byte, hi, lo uint64) *record {
	mask := uint64(len(x.slots) - 1)
	for i := lo & mask; ; i = (i + 1) & mask {
		e := x.slots[i].Load()
		if e == 0 {
			return nil
		}
		if e>>32 == hi>>32 {
			if r := recordAt(data, int64(e&(1<<32-1))*8); r.hi == hi && r.lo == lo {
				return r
			}
		}
	}
}

// with returns an index that has the row at an offset as well: x, or, if that is full, a larger one.
func (x *index) with(data []byte, at int64) *index {
	if (x.count+1)*4 > len(x.slots)*3 {
		larger := newIndex(len(x.slots) * 2)
		for i := range x.slots {
			if e := x.slots[i].Load(); e != 0 {
				larger.put(recordAt(data, int64(e&(1<<32-1))*8).lo, e)
			}
		}
		x = larger
	}
	r := recordAt(data, at)
	x.put(r.lo, r.hi>>32<<32|uint64(at)/8)
	return x
}

func (x *index) put(lo, entry uint64) {
	mask := uint64(len(x.slots) - 1)
	i := lo & mask
	for x.slots[i].Load() != 0 {
		i = (i + 1) & mask
	}
	x.slots[i].Store(entry)
	x.count++
}
