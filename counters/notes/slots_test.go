package notes

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// What is held agrees with the slots, whatever is acquired, renewed, released, copied and merged.
func TestSlotsAgreeWithTheirSum(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	s := New(DefaultReservationBytes)
	limits := []SlotsKey{{1, 1 << 32}, {1, 2 << 32}, {2, 3 << 32}}
	model := map[SlotsKey]map[uint64]SlotInfo{}
	for _, key := range limits {
		model[key] = map[uint64]SlotInfo{}
	}
	now := int64(1e12)
	for step := range 30_000 {
		now += r.Int64N(1e8)
		key := limits[r.IntN(len(limits))]
		id := r.Uint64N(200)
		lp := s.Lock(Key{Subject: key.Subject}.Partition(), now)
		have, n, held := lp.GetSlot(key, id, now)
		was, inModel := model[key][id]
		inModel = inModel && was.End > now
		if held != inModel || held && have != was {
			t.Fatalf("step %d: have %+v %v, want %+v %v", step, have, held, was, inModel)
		}
		info := SlotInfo{ID: id, Nonce: r.Uint64(), Units: 1 + r.Int64N(3), Acquired: now,
			End: now + 1 + r.Int64N(2e10), Who: fmt.Sprint(id)}
		switch {
		case !held:
			n := key.Note(&info, 7, false)
			lp.Put(&n)
			model[key][id] = info
		case r.IntN(2) == 0:
			lp.RenewSlot(&n, info.End)
			was.End = info.End
			model[key][id] = was
		default:
			lp.Remove(n.Key)
			delete(model[key], id)
		}

		sum, first, last := int64(0), int64(0), int64(0)
		for id, one := range model[key] {
			if one.End <= now {
				delete(model[key], id)
				continue
			}
			sum += one.Units
			if first == 0 || one.End-now < first {
				first = one.End - now
			}
			last = max(last, one.End-now)
		}
		units, enough, all := lp.HeldSlots(key, now, sum-1)
		list, listed := lp.ListSlots(key, now, 20)
		lp.Unlock()
		if want := firstOf(model[key], 20); !slices.Equal(list, want) || listed != len(model[key]) {
			t.Fatalf("step %d: got %+v of %d listed, want %+v of %d", step, list, listed, want, len(model[key]))
		}
		if units != sum || sum > 0 && enough != first || all < last {
			t.Fatalf("step %d: have %d held, the first for %d, the last for %d; want %d, %d, %d",
				step, units, enough, all, sum, first, last)
		}
	}
	if ends := len(s.ensurePartition(Key{Subject: 1}.Partition()).slots[limits[0]].ends); ends > 3*200+2*exactEnds {
		t.Errorf("%d ends are kept of at most 200 slots", ends)
	}
}

// A standby, which answers nothing about slots, keeps no more ends of slots than
// their owner. Else they would fill its memory, and keep all waiting at its
// promotion.
func TestEndsOfACopyAreBounded(t *testing.T) {
	t.Parallel()
	const count = 2
	s := New(DefaultReservationBytes)
	key, now := SlotsKey{1, 10}, int64(1e12)
	for i := range int64(100_000) {
		n := key.Note(&SlotInfo{ID: uint64(i % count), Units: 1, Acquired: now, End: now + 1e10 + i}, 0, false)
		s.Replace(&n, now)
	}
	s.Sweep(now, 1, func(int) bool { return false })
	if ends := len(s.ensurePartition(Key{Subject: 1}.Partition()).slots[key].ends); ends > 2*count+exactEnds+1 {
		t.Errorf("%d ends are kept of %d slots", ends, count)
	}
}

// A stranger chooses the groups of limits that come with the call: however many
// these are, their slots that ended are counted as those of one.
func TestExpiredSlotsOfStrangersAreCountedTogether(t *testing.T) {
	t.Parallel()
	const count = 10_000
	s := New(DefaultReservationBytes)
	key, now := SlotsKey{1, 10}, int64(1e12)
	lp := s.Lock(Key{Subject: 1}.Partition(), now)
	for i := range uint32(count) {
		n := key.Note(&SlotInfo{ID: uint64(i), Units: 1, Acquired: now, End: now + 1}, 7+i, i > 0)
		lp.Put(&n)
	}
	lp.HeldSlots(key, now+1, 0)
	lp.Unlock()
	if got := s.ExpiredSlots(); got[7] != 1 || got[InlineGroup] != count-1 || len(got) != 2 {
		t.Errorf("the slots that ended are counted under %d groups: %d of the rule, %d of strangers, want 1 and %d",
			len(got), got[7], got[InlineGroup], count-1)
	}
}

// firstOf returns the slots that end first.
func firstOf(slots map[uint64]SlotInfo, most int) []SlotInfo {
	list := slices.SortedFunc(maps.Values(slots), func(a, b SlotInfo) int { return cmp.Compare(a.End, b.End) })
	return list[:min(len(list), most)]
}

// A list of a limit that has very many slots makes nobody wait until all are
// sorted, however often it is asked for.
func TestListOfManySlots(t *testing.T) {
	t.Parallel()
	const count = 20_000
	s := New(DefaultReservationBytes)
	key, now := SlotsKey{1, 10}, int64(1e12)
	lp := s.Lock(Key{Subject: 1}.Partition(), now)
	defer lp.Unlock()
	for i := range uint64(count) {
		n := key.Note(&SlotInfo{ID: i, Units: 1, Acquired: now, End: now + 1e9 + int64(i)}, 0, false)
		lp.Put(&n)
	}
	renew := func(from, to uint64) {
		for i := from; i < to; i++ {
			_, n, _ := lp.GetSlot(key, i, now)
			lp.RenewSlot(&n, now+2e9+int64(i))
		}
	}
	list := func(want ...uint64) {
		t.Helper()
		got, all := lp.ListSlots(key, now, len(want))
		var ids []uint64
		for _, one := range got {
			ids = append(ids, one.ID)
		}
		if !slices.Equal(ids, want) || all != count {
			t.Errorf("got %v of %d, want %v of %d", ids, all, want, count)
		}
	}
	kept := func() int { return len(lp.part.slots[key].ends) }

	renew(1, 100)
	list(0, 100, 101)
	if got, want := kept(), count+99; got != want {
		t.Errorf("after a list, %d ends are kept, want %d: all were read", got, want)
	}

	// Nothing but earlier ends of renewed slots is near.
	renew(100, 6000)
	list(0, 6000, 6001)
	expect.Equal(t, kept(), count, "after a list beyond many renewals, ends are kept")
}

// Time passes until enough slots have ended, not only the first.
func TestEnoughSlotsEnd(t *testing.T) {
	t.Parallel()
	s := New(DefaultReservationBytes)
	key, now := SlotsKey{1, 10}, int64(1e12)
	lp := s.Lock(Key{Subject: 1}.Partition(), now)
	defer lp.Unlock()
	for i, units := range []int64{3, 1, 2, 5} {
		n := key.Note(&SlotInfo{ID: uint64(i), Units: units, Acquired: now, End: now + int64(i+1)*1e9}, 0, false)
		lp.Put(&n)
	}
	for rest, want := range map[int64]int64{10: 1, 8: 1, 7: 2, 6: 3, 5: 3, 4: 4, 0: 4} {
		if _, enough, all := lp.HeldSlots(key, now, rest); enough != want*1e9 || all != 4e9 {
			t.Errorf("until %d are left: %d ns, and all in %d", rest, enough, all)
		}
	}
}

// A slot takes no more memory than it takes of its budget.
func TestMemoryOfSlots(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes many slots")
	}
	const count = 200_000
	s := New(DefaultReservationBytes)
	size := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := size()
	key, now := SlotsKey{1, 10}, int64(1e12)
	lp := s.Lock(Key{Subject: 1}.Partition(), now)
	for i := range uint64(count) {
		n := key.Note(&SlotInfo{ID: i * 0x9e3779b97f4a7c15, Nonce: i, Units: 1, Acquired: now,
			End: now + 1e10, Who: "127.0.0.1"}, 0, false)
		lp.Put(&n)
	}
	lp.Unlock()
	each := float64(size()-before) / count
	t.Logf("%.0f bytes each", each)
	if each > Overhead+slotBytes {
		t.Errorf("a slot takes %.0f bytes, want at most %d", each, Overhead+slotBytes)
	}
	runtime.KeepAlive(s)
}
