package notes

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

// begin is the steady time at which tests begin.
const begin = int64(1_800_000_000e9)

// reservation returns the note of an open reservation, of a rule and a subject,
// that lasts ten minutes.
func reservation(group uint32, subject, id uint64) Note {
	return Note{
		Key: Key{Subject: subject, ID: id, Kind: Reservation}, Group: group,
		At: begin, UntilSecond: begin/1e9 + 600,
	}
}

// add makes a reservation and reports whether there was room.
func add(t *testing.T, s *Store, n Note) bool {
	t.Helper()
	lp := s.Lock(n.Partition(), begin)
	defer lp.Unlock()
	err := lp.PutIfRoom(n)
	if err != nil && !errors.Is(err, ErrReservations) {
		t.Fatal(err)
	}
	return err == nil
}

// fill makes reservations of a rule, of subjects in turn, until there is no
// room, and returns how many it made.
func fill(t *testing.T, s *Store, group uint32, subject func(i uint64) uint64) (made int) {
	t.Helper()
	for i := uint64(0); ; i++ {
		if !add(t, s, reservation(group, subject(i), uint64(group)<<40+i)) {
			return made
		}
		made++
	}
}

// spread returns subjects all over the partitions.
func spread(i uint64) uint64 { return i * 0x9e3779b97f4a7c15 }

// One subject gets most of the room for reservations, by default that of 1,000
// a second which each stay open for ten minutes. But others always find some,
// however late they come: another subject of the rule, another rule, and the
// hundredth rule.
func TestReservationsAreShared(t *testing.T) {
	s := New(DefaultReservationBytes)
	one := func(uint64) uint64 { return 7 }
	alone := fill(t, s, 1, one)
	if alone < 600_000 {
		t.Errorf("one subject got %d places, want 600,000", alone)
	}
	if got := fill(t, s, 1, func(uint64) uint64 { return 8 }); got < 10_000 {
		t.Errorf("another subject of the rule got %d places", got)
	}
	if got := fill(t, s, 2, spread); got < 10_000 {
		t.Errorf("another rule got %d places", got)
	}
	for group := range uint32(100) {
		if got := fill(t, s, 3+group, func(uint64) uint64 { return 100 + uint64(group) }); got < 100 {
			t.Fatalf("rule %d got %d places", 3+group, got)
		}
	}
	if st := s.Stats(); st.Reservations > st.MaxReservations || st.RefusedReserves != 103 {
		t.Errorf("have %+v", st)
	}
}

// Reservations of subjects that came with their limits get half, however many
// rules and subjects take part.
func TestInlineReservationsGetHalf(t *testing.T) {
	s := New(1 << 20)
	made := 0
	for group := range uint32(1000) {
		for i := range uint64(100) {
			n := reservation(group, spread(uint64(group)), uint64(group)<<32+i)
			n.Inline = true
			if add(t, s, n) {
				made++
			}
		}
	}
	if bytes := int64(made) * Overhead; bytes > 1<<19 || bytes < 1<<18 {
		t.Errorf("inline reservations take %d bytes of 1 MiB", bytes)
	}
	if got := fill(t, s, 5000, spread); int64(got)*Overhead < 1<<18 {
		t.Errorf("a rule got %d places beside them", got)
	}
}

// At its bound, the oldest answer of a rule that has its even share goes. So no
// rule's answers push those of a rule with few out.
func TestAnswersOfRulesThatHaveFewStay(t *testing.T) {
	s := New(1 << 20)
	const body = 1000
	const most = maxAnswers / (Overhead + body)
	keep := func(group uint32, id uint64, inline bool) {
		n := &Note{
			Key: Key{Subject: spread(id), ID: id, Kind: Answer}, Group: group, Inline: inline,
			At: begin, UntilSecond: begin/1e9 + 60, Body: string(make([]byte, body)),
		}
		expect.NoError(t, s.MakeRoom(n, begin))
		lp := s.Lock(n.Partition(), begin)
		defer lp.Unlock()
		lp.Put(n)
		s.AddEvictable(n)
	}
	kept := func(from, to uint64) (n int) {
		for id := from; id < to; id++ {
			k := Key{Subject: spread(id), ID: id, Kind: Answer}
			lp := s.Lock(k.Partition(), begin)
			if _, found := lp.Get(k); found {
				n++
			}
			lp.Unlock()
		}
		return n
	}

	const few, flood = 1000, 1 << 20
	for id := range uint64(few) {
		keep(uint32(id%10), id, id%2 == 0)
	}
	for id := range uint64(2 * most) {
		keep(77, flood+id, false)
		keep(78, 2*flood+id, true)
	}
	expect.Equal(t, kept(0, few), few, "answers of ten rules, after floods of two others, kept")
	for id := range uint64(few) {
		keep(uint32(id%10), few+id, id%2 == 0)
	}
	expect.Equal(t, kept(0, 2*few), 2*few, "with as many that came after the floods, kept")

	last := uint64(flood + 2*most)
	if got := kept(last-most/4, last); got < most/4 {
		t.Errorf("of the newest answers of the flood, %d of %d are kept", got, most/4)
	}

	s.Sweep(begin+61e9, 1, func(int) bool { return true })
	for _, inline := range []bool{false, true} {
		if m := s.budgets[answers].evictableOf(inline); m.count != 0 || len(m.byGroup) != 0 {
			t.Errorf("after a minute, %d notes of %d groups are listed", m.count, len(m.byGroup))
		}
	}
}

// A note of a new group gives way fast, however many groups have less than their share.
func BenchmarkGiveAmongManyGroups(b *testing.B) {
	const groups = 60_000
	var m evictableNotes
	for group := range uint32(groups) {
		m.add(group, evictableNote{})
	}
	for range groups / 6 {
		m.add(groups, evictableNote{})
	}

	next := uint32(groups)
	for b.Loop() {
		next++
		m.evict(next)
		m.add(next, evictableNote{})
	}
}

// The budgets never take from each other. At its bound the oldest answer goes,
// and the oldest retry; a write finds no room. So no number of writes keeps
// nodes from repeating their requests among themselves.
func TestBudgets(t *testing.T) {
	s := New(1 << 20)
	keep := func(kind Kind, id uint64, inline bool, body int) error {
		n := &Note{
			Key: Key{Subject: spread(id), ID: id, Kind: kind}, Inline: inline,
			At: begin, UntilSecond: begin/1e9 + 60, Body: string(make([]byte, body)),
		}
		if err := s.MakeRoom(n, begin); err != nil {
			return err
		}
		lp := s.Lock(n.Partition(), begin)
		defer lp.Unlock()
		lp.Put(n)
		s.AddEvictable(n)
		return nil
	}
	has := func(kind Kind, id uint64) bool {
		k := Key{Subject: spread(id), ID: id, Kind: kind}
		lp := s.Lock(k.Partition(), begin)
		defer lp.Unlock()
		_, found := lp.Get(k)
		return found
	}

	fill(t, s, 1, spread)
	const body = 1000
	answers := maxAnswers / (Overhead + body)
	for i := range uint64(2 * answers) {
		expect.NoError(t, keep(Answer, i, false, body))
	}
	if has(Answer, 0) || has(Answer, uint64(answers)-1) || !has(Answer, uint64(answers)+1) ||
		!has(Answer, uint64(2*answers)-1) {
		t.Error("not the oldest answers went")
	}

	writes := uint64(0)
	for keep(Write, writes, false, 0) == nil {
		writes++
	}
	if err := keep(Write, writes, false, 0); !errors.Is(err, ErrWrites) || writes != maxWrites/Overhead {
		t.Errorf("%d writes were kept, then %v", writes, err)
	}
	if !has(Write, 0) {
		t.Error("the answer to a write is gone")
	}
	const retries = maxRetries / Overhead
	for i := range uint64(retries + 1) {
		if err := keep(Retry, i, false, 0); err != nil {
			t.Fatalf("retry %d, beside as many writes as there may be: %v", i, err)
		}
	}
	if has(Retry, 0) || !has(Retry, 1) || !has(Write, 0) {
		t.Error("not the oldest retry went")
	}

	inline := 0
	for i := range uint64(2 * answers) {
		if keep(Answer, 1<<40+i, true, body) == nil {
			inline++
		}
	}
	if has(Answer, uint64(answers)*3/2-1) || !has(Answer, uint64(answers)*3/2+1) || inline != 2*answers {
		t.Errorf("inline answers did not get half; %d were kept", inline)
	}
	st := s.Stats()
	if st.Answers > maxAnswers || st.WritesAndRetries > maxWrites+maxRetries {
		t.Errorf("have %+v", st)
	}
}

// A reset is known until it is forgotten at the bound; then whatever may have
// been taken before it counts as taken before it.
func TestResets(t *testing.T) {
	s := New(1 << 20)
	reset := func(subject uint64) {
		n := &Note{Key: Key{Subject: subject, Kind: Reset}}
		expect.NoError(t, s.MakeRoom(n, begin))
		lp := s.Lock(n.Partition(), begin)
		defer lp.Unlock()
		lp.RecordReset(n.Key, false, begin, begin/1e9+100)
	}
	since := func(subject, resets uint64) bool {
		lp := s.Lock(Key{Subject: subject}.Partition(), begin)
		defer lp.Unlock()
		return lp.MayBeResetSince(subject, 7, resets)
	}

	reset(1)
	reset(2)
	reset(1)
	expect.Equal(t, s.Resets(0), 3, "partition 0 counts resets")
	for _, tt := range []struct {
		subject, resets uint64
		want            bool
	}{{1, 0, true}, {1, 2, true}, {1, 3, false}, {2, 1, true}, {2, 2, false}, {3, 0, false}} {
		expect.Equal(t, since(tt.subject, tt.resets), tt.want, "subject %d was reset since %d", tt.subject, tt.resets)
	}

	for i := range uint64(maxResets/Overhead + 10) {
		reset(1<<62 + i<<20)
	}
	if !since(3, 0) || !since(1, 2) {
		t.Error("resets were forgotten, and what was taken before them would come back")
	}
	if since(1, 3) {
		t.Error("what was taken after all resets of its partition would not come back")
	}
}

// A copy that another one is added to, or that the owner's replaces, still knows
// what it has forgotten itself.
func TestResets_CopiesKnowWhatEitherForgot(t *testing.T) {
	numbers := func(rank, floor uint64, at int64) *Note {
		return &Note{Key: PartitionKey(Resets, 0, 0), Rank: rank, Minor: floor, At: at, UntilSecond: forever}
	}
	for name, add := range map[string]func(s *Store, n *Note){
		"replace": func(s *Store, n *Note) { s.Replace(n, begin) },
		"merge":   func(s *Store, n *Note) { s.Merge(n, begin) },
	} {
		for _, pair := range [][2]*Note{
			{numbers(3, 2, begin), numbers(5, 1, 0)}, {numbers(5, 1, 0), numbers(3, 2, begin)},
		} {
			s := New(1 << 20)
			for _, n := range pair {
				add(s, n)
			}
			lp := s.Lock(0, begin)
			if !lp.HasForgottenRates(1, begin) {
				t.Errorf("%s %+v: rates that one copy has forgotten count as known", name, pair)
			}
			if !lp.MayBeResetSince(1, 7, 1) || lp.MayBeResetSince(1, 7, 2) {
				t.Errorf("%s %+v: got another floor of resets than 2", name, pair)
			}
			lp.Unlock()
		}
	}
}

// A subject that is reset again and again is listed once among what may give
// way, by its last reset, and keeps nothing before it from being forgotten.
func TestResetsOfOneSubject(t *testing.T) {
	s := New(1 << 20)
	reset := func(subject uint64, at int64) {
		n := &Note{Key: ResetKey(subject, 0)}
		expect.NoError(t, s.MakeRoom(n, at))
		lp := s.Lock(n.Partition(), at)
		defer lp.Unlock()
		lp.RecordReset(n.Key, false, at, at/1e9+100)
	}
	const again, other = 1, 1 << 62
	m := &s.budgets[resets].evictable

	reset(again, begin-2)
	reset(other, begin-1)
	for i := range int64(100_000) {
		reset(again, begin+i)
		if i%1000 == 0 {
			s.Sweep(begin+i, 1, func(int) bool { return true })
		}
	}
	if m.count > 1100 {
		t.Errorf("two notes are listed %d times", m.count)
	}

	for i := range uint64(maxResets/Overhead - 2) { // the budget is full
		reset(2*other+i<<20, begin+2e5)
	}
	reset(again, begin+2e5)
	for i := range uint64(10) {
		reset(3*other+i<<20, begin+2e5)
	}
	lp := s.Lock(0, begin)
	defer lp.Unlock()
	if lp.MayBeResetSince(2, 7, 99_999) {
		t.Error("the newest reset was forgotten before older ones: what others took before it would not come back")
	}
}

// Copies follow the owner's notes, also those that it drops. Of two copies
// without an order, a settlement stays, and the higher of two numbers.
func TestCopies(t *testing.T) {
	owner, standby := New(1<<20), New(1<<20)
	send := func() (n int) {
		for _, note := range owner.Changes(0, Replicas, nil, nil) {
			n++
			received := Note{Key: note.Key}
			d := wire.NewDecoder(note.Append(nil, begin))
			received.Decode(d, begin)
			expect.NoError(t, d.Done("note"))
			standby.Replace(&received, begin)
		}
		return n
	}
	get := func(s *Store, k Key) (Note, bool) {
		lp := s.Lock(k.Partition(), begin)
		defer lp.Unlock()
		return lp.Get(k)
	}

	send() // from now on replicas are told
	open := reservation(1, 1, 1)
	add(t, owner, open)
	add(t, owner, reservation(1, 1, 2))
	expect.Equal(t, send(), 2, "notes were sent")
	settled := open
	settled.Rank, settled.Body = 1, "the answer"
	lp := owner.Lock(0, begin)
	lp.Put(&settled)
	lp.Put(&settled)
	lp.Remove(Key{Subject: 1, ID: 2, Kind: Reservation})
	lp.Unlock()
	if n := send(); n != 2 || send() != 0 {
		t.Errorf("%d changes were sent, want 2, and then none", n)
	}
	if got, found := get(standby, open.Key); !found || got != settled {
		t.Errorf("the copy has %+v, %t, want %+v", got, found, settled)
	}
	if _, found := get(standby, Key{Subject: 1, ID: 2, Kind: Reservation}); found {
		t.Error("the copy has a note that was dropped")
	}
	if standby.Stats() != owner.Stats() {
		t.Errorf("the copy counts %+v, the owner %+v", standby.Stats(), owner.Stats())
	}

	standby.Merge(&open, begin)
	if got, _ := get(standby, open.Key); got.Rank != 1 || got.Body == "" {
		t.Errorf("after a merge with an open one it is %+v", got)
	}
	other := New(1 << 20)
	other.Merge(&open, begin)
	other.Merge(&settled, begin)
	if got, _ := get(other, open.Key); got.Rank != 1 {
		t.Errorf("after a merge with a settled one it is %+v", got)
	}
	numbers := Note{Key: PartitionKey(Debtor, 0, 5), Rank: 3, Minor: 2, UntilSecond: begin/1e9 + 9}
	older := numbers
	older.Rank, older.Minor = 2, 7
	for _, n := range []*Note{&older, &numbers, &older} {
		other.Merge(n, begin)
	}
	if got, _ := get(other, numbers.Key); got.Rank != 3 || got.Minor != 2 {
		t.Errorf("of two batches, the merge has %d, %d", got.Rank, got.Minor)
	}

	if !standby.Drop(0) || standby.Stats().Reservations != 0 || standby.Drop(0) {
		t.Errorf("after a drop it counts %+v", standby.Stats())
	}
}

// A node that was the owner keeps its floor of forgotten resets, although the
// next owner does not know of it.
func TestACopyKeepsItsFloor(t *testing.T) {
	s := New(1 << 20)
	numbers := Note{Key: PartitionKey(Resets, 0, 0), Rank: 5, Minor: 4, UntilSecond: forever}
	s.Replace(&numbers, begin)
	numbers.Rank, numbers.Minor = 6, 0
	s.Replace(&numbers, begin)
	lp := s.Lock(0, begin)
	defer lp.Unlock()
	if !lp.MayBeResetSince(1, 7, 3) || lp.MayBeResetSince(1, 7, 4) || s.Resets(0) != 6 {
		t.Error("what was taken before resets that were forgotten would come back")
	}
}

// Random changes leave the budgets what they were before the first note.
func TestBudgetsAddUp(t *testing.T) {
	s := New(1 << 30)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		n := Note{
			Key:  Key{Subject: rng.Uint64N(50) << 52, ID: rng.Uint64N(50), Kind: Kind(rng.IntN(int(numKinds)))},
			Rank: rng.Uint64N(2), Group: rng.Uint32N(3), Inline: rng.IntN(2) == 0,
			At: begin, UntilSecond: begin/1e9 + rng.Int64N(100) - 50, Body: string(make([]byte, rng.IntN(9))),
		}
		lp := s.Lock(n.Partition(), begin)
		switch rng.IntN(6) {
		case 0:
			lp.Remove(n.Key)
		case 1:
			lp.Put(&n)
		case 2:
			_ = lp.PutIfRoom(reservation(n.Group, n.Subject, n.ID))
		}
		lp.Unlock()
		switch rng.IntN(60) {
		case 0:
			s.Merge(&n, begin)
		case 1:
			s.Replace(&n, begin)
		case 2:
			s.Drop(n.Partition())
		case 3:
			s.Sweep(begin+rng.Int64N(50e9), 0.1, func(int) bool { return true })
		}
	}
	for p := range 4096 {
		s.Drop(p)
	}
	for i := range s.budgets {
		b := &s.budgets[i]
		if b.used != 0 || b.inline != 0 || b.open != 0 || len(b.byRule) != 0 || len(b.bySubject) != 0 {
			t.Errorf("budget %d of nothing: %d used, %d inline, %d open, %d rules, %d subjects",
				i, b.used, b.inline, b.open, len(b.byRule), len(b.bySubject))
		}
	}
	expect.Equal(t, s.rates.Load(), 0, "rates are left")
}

// heap returns the bytes in use on the heap.
func heapSize() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What a reservation takes of its budget is what it takes of memory, at most,
// however many there are: maps double, so that many more are needed before they
// are well filled again.
func TestBytesOfANote(t *testing.T) {
	most, step := uint64(700_000), uint64(50_000)
	if testing.Short() {
		most = 200_000
	}
	for name, subject := range map[string]func(uint64) uint64{
		"one subject":   func(uint64) uint64 { return 7 },
		"many subjects": spread,
	} {
		before := heapSize()
		s := New(1 << 30)
		least, greatest := int64(1<<30), int64(0)
		for i := range most {
			add(t, s, reservation(1, subject(i), i))
			if i >= 50_000 && i%step == 0 {
				each := (heapSize() - before) / int64(i)
				least, greatest = min(least, each), max(greatest, each)
			}
		}
		t.Logf("%s: %d to %d bytes each of up to %d reservations", name, least, greatest, most)
		if greatest > Overhead {
			t.Errorf("%s: a reservation takes %d bytes, want at most %d", name, greatest, Overhead)
		}
		runtime.KeepAlive(s)
	}
}

// The rates of buckets are shared like reservations: neither one reservation of
// many buckets nor a flood of subjects takes them from others. A rate that is
// there already takes no more.
func TestRatesAreShared(t *testing.T) {
	s := New(1 << 20)
	reserve := func(group uint32, subject, id uint64, buckets int) bool {
		list := []Note{reservation(group, subject, id)}
		for i := range buckets {
			rate := reservation(group, subject, uint64(i))
			rate.Kind = Rate
			list = append(list, rate)
		}
		lp := s.Lock(list[0].Partition(), begin)
		defer lp.Unlock()
		return lp.PutIfRoom(list...) == nil
	}

	flood := uint64(0)
	for reserve(1, spread(flood), flood, 3) {
		flood++
	}
	if most := uint64(1 << 20 / Overhead / 3); flood < most/2 || flood >= most {
		t.Errorf("a flood got %d reservations, want some of %d", flood, most)
	}
	for id := range uint64(10) {
		if !reserve(1, spread(1), 1<<32+id, 3) {
			t.Fatalf("reservation %d of a subject whose rates are there found no room", id)
		}
	}
	for group := range uint32(10) {
		if !reserve(2+group, 1<<40+uint64(group), 1, 3) {
			t.Errorf("rule %d found no room", 2+group)
		}
	}
	for p := range s.partitions {
		s.Drop(p)
	}
	if b := &s.budgets[rates]; b.used != 0 || len(b.byRule) != 0 || len(b.bySubject) != 0 {
		t.Errorf("nothing takes %d bytes, of %d rules and %d subjects", b.used, len(b.byRule), len(b.bySubject))
	}
}

// Floods that are over leave no memory behind, one subject after another,
// whether or not somebody receives the changes.
func TestFloodsLeaveNoMemory(t *testing.T) {
	for name, received := range map[string]bool{"with checkpoints": true, "without": false} {
		s := New(5 << 20)
		before := heapSize()
		now := begin
		for round := range uint64(20) {
			for i := range uint64(10_000) {
				n := reservation(1, round<<52, round<<32+i)
				n.At, n.UntilSecond = now, now/1e9+60
				lp := s.Lock(n.Partition(), now)
				expect.NoError(t, lp.PutIfRoom(n))
				lp.Unlock()
			}
			if received {
				s.Changes(int(round), Checkpoints, nil, nil)
			}
			now += 61e9
			s.Sweep(now, 1, func(int) bool { return true })
		}
		if got := heapSize() - before; got > 1<<20 {
			t.Errorf("%s: %d KiB are left of 20 floods that are over", name, got>>10)
		}
		runtime.KeepAlive(s)
	}
}

// A settled reservation forgets its answer after a minute, and everything ends.
func TestSweep(t *testing.T) {
	s := New(1 << 20)
	settled := reservation(1, 1, 1)
	settled.Rank, settled.Body = 1, "the answer"
	lp := s.Lock(0, begin)
	lp.Put(&settled)
	lp.Unlock()
	get := func(at time.Duration) (Note, bool) {
		s.Sweep(begin+int64(at), 1, func(int) bool { return true })
		lp := s.Lock(0, begin+int64(at))
		defer lp.Unlock()
		return lp.Get(settled.Key)
	}
	if got, _ := get(59 * time.Second); got.Body == "" {
		t.Error("the answer was forgotten within a minute")
	}
	if got, found := get(61 * time.Second); !found || got.Body != "" || got.Rank != 1 {
		t.Errorf("after a minute: %+v, %t", got, found)
	}
	if _, found := get(601 * time.Second); found || s.Stats().Reservations != 0 {
		t.Errorf("after its time: %t, %+v", found, s.Stats())
	}
}

func FuzzNote(f *testing.F) {
	n := reservation(3, 5, 7)
	n.Body = "body"
	f.Add(n.Append(nil, begin))
	f.Fuzz(func(t *testing.T, b []byte) {
		var n Note
		d := wire.NewDecoder(b)
		n.Decode(d, begin)
		if d.Done("note") != nil {
			return
		}
		s := New(1 << 20)
		s.Replace(&n, begin)
		s.Merge(&n, begin)
		s.Sweep(begin, 1, func(int) bool { return true })
	})
}
