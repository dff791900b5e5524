package counters

import (
	"encoding/binary"
	"errors"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// MaxMemo bounds a memo's answer, in bytes. The answer of a reservation of 256 limits fits, unless names are very long.
	MaxMemo = 64 << 10
	// ContentHashBits is the number of bits of a request's hash that a memo keeps.
	ContentHashBits = 48

	noteBytes = 6 + 6 + 4 // bytes of an answer that fit into the Count, Detail and At of a note
)

// ErrRequestIDReused means that the memo belongs to a request with the same id but other content.
var ErrRequestIDReused = errors.New("a request with this id asked for something else")

// Memo is the answer to a request with an id, kept with the counters of its subject. It is stored in notes. The first note
// holds the hash of the request's content, and the answer's length and checksum.
type Memo struct {
	Key         Key    // Counter is derived from the request's id
	ContentHash uint64 // hash of the request, ContentHashBits long
	Until       int64  // when it expires: Unix seconds on the steady clock
	Answer      []byte // nil after Recall if merged copies that differed made it unreadable
}

// memoKey returns the key of the i-th note of a memo.
func memoKey(k Key, i int) Key {
	counter := k.Counter + uint64(i)*0x9e3779b97f4a7c15
	if k.IsInline() {
		counter = InlineNote(counter)
	}
	return Key{Subject: k.Subject, Counter: counter}
}

// memoNotes returns how many notes a memo with an answer of n bytes takes.
func memoNotes(n int) int { return 1 + (n+noteBytes-1)/noteBytes }

// Recall reads m by its key and reports whether it exists. It fails with ErrShut, or with ErrRequestIDReused if the memo
// belongs to a request with other content.
func (t *Table) Recall(now algorithms.Instant, m *Memo) (found bool, err error) {
	s, now := t.lock(now, m.Key)
	defer s.mu.Unlock()
	if t.gates.isShut(m.Key.Partition()) {
		return false, ErrShut
	}
	return s.recallHeld(now, m)
}

// recallHeld is Recall for a caller that holds the shard. It does not check the gate.
func (s *shard) recallHeld(now algorithms.Instant, m *Memo) (found bool, err error) {
	head := [...]Note{{Key: m.Key}}
	if !s.readNotes(head[:], now) {
		return false, nil
	}
	if uint64(head[0].Count) != m.ContentHash {
		return true, ErrRequestIDReused
	}
	m.Answer = nil
	size, sum := int(head[0].Detail>>32), uint32(head[0].Detail)
	answer := make([]byte, 0, size+noteBytes)
	for i := 1; len(answer) < size; i++ {
		note := [...]Note{{Key: memoKey(m.Key, i)}}
		if !s.readNotes(note[:], now) {
			return true, nil
		}
		n := &note[0]
		answer = append48(append48(answer, n.Count), n.Detail)
		answer = binary.LittleEndian.AppendUint32(answer, uint32(n.At))
	}
	if answer = answer[:size]; wire.Sum(0, answer) == sum {
		m.Answer = answer
	}
	return true, nil
}

// Remember stores m. If it fails with ErrShut or ErrFull, nothing changes.
func (t *Table) Remember(now algorithms.Instant, m *Memo) error {
	s, now := t.lock(now, m.Key)
	defer s.mu.Unlock()
	if t.gates.isShut(m.Key.Partition()) {
		return ErrShut
	}
	if len(m.Answer) > MaxMemo || !t.makeRoomFor(s, m.Key, now, memoNotes(len(m.Answer)), nil) {
		return ErrFull
	}
	s.rememberHeld(m)
	return nil
}

// makeRoomFor makes room for n more counters in s, without evicting those of ops. The caller must hold s.
func (t *Table) makeRoomFor(s *shard, k Key, now algorithms.Instant, n int, ops []Op) bool {
	for i := range n {
		if !t.makeRoom(s, k, now.Steady, i, ops) {
			return false
		}
	}
	return true
}

// rememberHeld stores m. The caller must hold the shard and have made room.
func (s *shard) rememberHeld(m *Memo) {
	size := len(m.Answer)
	s.storeNote(&Note{
		Key: m.Key, Count: int64(m.ContentHash), Detail: int64(size)<<32 | int64(wire.Sum(0, m.Answer)),
	}, m.Until)
	for i := 1; i < memoNotes(size); i++ {
		var part [noteBytes]byte
		copy(part[:], m.Answer[(i-1)*noteBytes:])
		s.storeNote(&Note{
			Key: memoKey(m.Key, i), Count: get48(part[0:]), Detail: get48(part[6:]), At: int64(binary.LittleEndian.Uint32(part[12:])),
		}, m.Until)
	}
}

// Forget removes a memo before it expires. It does nothing if there is no such memo or if the gate of its partition is shut.
func (t *Table) Forget(now algorithms.Instant, k Key) {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	head := [...]Note{{Key: k}}
	if t.gates.isShut(k.Partition()) || !s.readNotes(head[:], now) {
		return
	}
	for i := range memoNotes(int(head[0].Detail >> 32)) {
		if loc := s.find(memoKey(k, i)); loc.found() {
			// As after a reset, the note stays until it has replaced its copies.
			g := loc.group()
			g.records[loc.slot()].state, g.kindFullnesses[loc.slot()] = algorithms.State{}, packKindFullness(noteKind, 0)
			s.markDirty(loc, allReaders)
		}
	}
}

func append48(b []byte, v int64) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40))
}

func get48(b []byte) int64 {
	return int64(binary.LittleEndian.Uint32(b)) | int64(binary.LittleEndian.Uint16(b[4:]))<<32
}

// Amendment is an administrative change to counters of one subject.
type Amendment struct {
	Ops   []Op // a negative cost is a reward; Amend sets each Decision to that of a check of cost 0 after the change
	Reset bool // makes the counters fresh
	// Memo, if not nil, deduplicates the change: if the memo exists already, nothing changes. Answer returns the answer to
	// store in the memo.
	Memo     *Memo
	Answer   func(a *Amendment) []byte
	Repeated bool // set by Amend: the change was made earlier, so the Decisions of Ops are not set
}

// Amend changes counters of one subject. If it fails with ErrShut, ErrFull or ErrRequestIDReused, nothing changes.
func (t *Table) Amend(now algorithms.Instant, a *Amendment) error {
	k := a.Ops[0].Key
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	a.Repeated = false
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}
	room := 0
	for i := range a.Ops {
		if k := a.Ops[i].Key; s.log(k) == nil && !s.find(k).found() {
			room++
		}
	}
	if a.Memo != nil {
		found, err := s.recallHeld(now, a.Memo)
		if a.Repeated = found; found || err != nil {
			return err
		}
		room += memoNotes(len(a.Ops) * maxAnswerPerOp)
	}
	if !t.makeRoomFor(s, k, now, room, a.Ops) {
		return ErrFull
	}
	for i := range a.Ops {
		op := &a.Ops[i]
		if err := t.amend(s, now, op, a.Reset); err != nil {
			return err // can't happen, because room was just made
		}
		op.Decision = t.usageHeld(s, now, op.Key, op.Limit)
	}
	if a.Memo != nil {
		a.Memo.Answer = a.Answer(a)
		s.rememberHeld(a.Memo)
	}
	return nil
}

// maxAnswerPerOp bounds the bytes of a memo's answer per op.
const maxAnswerPerOp = 64

// amend changes one counter. The caller must hold the shard and have made room.
func (t *Table) amend(s *shard, now algorithms.Instant, op *Op, reset bool) error {
	switch {
	case reset:
		return t.reset(s, now, op.Key, op.Limit)
	case op.Cost < 0:
		return t.changeHeld(s, now, op.Key, op.Limit, reward(op.Limit, -op.Cost))
	case op.Cost > 0:
		return t.changeHeld(s, now, op.Key, op.Limit, penalty(op.Limit, op.Cost))
	}
	return nil
}
