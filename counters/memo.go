package counters

import (
	"encoding/binary"
	"errors"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// MaxMemo bounds the answer in a memo, in bytes.
	MaxMemo = 32 << 10
	// BodyBits is how much of a request's hash a memo keeps.
	BodyBits = 48

	noteBytes = 6 + 6 + 4 // of an answer, in the Count, Detail and At of a note
)

// ErrBody: the request that a memo tells of had another body.
var ErrBody = errors.New("a request with this id had another body")

// Memo is the answer to a request with an id, kept beside the counters of its subject: in notes, the first of which has the
// hash of the request's body and the answer's length and checksum.
type Memo struct {
	Key    Key    // Lo is made of the request's id
	Body   uint64 // hash of the request, of BodyBits
	Until  int64  // Unix seconds on the steady clock: how long it is kept
	Answer []byte // nil, from Recall: it can't be read, since two copies of it differed
}

// memoKey is the key of the i-th note of a memo.
func memoKey(k Key, i int) Key { return Key{Hi: k.Hi, Lo: k.Lo + uint64(i)*0x9e3779b97f4a7c15} }

// memoNotes is how many notes an answer of n bytes takes.
func memoNotes(n int) int { return 1 + (n+noteBytes-1)/noteBytes }

// Recall reads m by its key, and reports whether it is there. It fails with ErrShut, and with ErrBody if it is there for a request
// with another body.
func (t *Table) Recall(now algorithms.Now, m *Memo) (found bool, err error) {
	s := t.shardOf(m.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.gates.isShut(m.Key.Partition()) {
		return false, ErrShut
	}
	return s.recall(now, m)
}

// recall is Recall for a shard that is held.
func (s *shard) recall(now algorithms.Now, m *Memo) (found bool, err error) {
	head := [...]Note{{Key: m.Key}}
	if !s.notes(head[:], now) {
		return false, nil
	}
	if uint64(head[0].Count) != m.Body {
		return true, ErrBody
	}
	m.Answer = nil
	size, sum := int(head[0].Detail>>32), uint32(head[0].Detail)
	answer := make([]byte, 0, size+noteBytes)
	for i := 1; len(answer) < size; i++ {
		note := [...]Note{{Key: memoKey(m.Key, i)}}
		if !s.notes(note[:], now) {
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

// Remember puts m into the table. It fails, and does nothing, with ErrShut or ErrFull.
func (t *Table) Remember(now algorithms.Now, m *Memo) error {
	s := t.shardOf(m.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.gates.isShut(m.Key.Partition()) {
		return ErrShut
	}
	if len(m.Answer) > MaxMemo || !t.roomFor(s, m.Key, now, memoNotes(len(m.Answer)), nil) {
		return ErrFull
	}
	s.remember(m)
	return nil
}

// roomFor makes room for n more counters in s, which is held, but not of those of ops.
func (t *Table) roomFor(s *shard, k Key, now algorithms.Now, n int, ops []Op) bool {
	for i := range n {
		if !t.makeRoom(s, k, now.Steady, i, ops) {
			return false
		}
	}
	return true
}

// remember puts m into the shard, which is held and has room.
func (s *shard) remember(m *Memo) {
	size := len(m.Answer)
	s.note(&Note{
		Key: m.Key, Count: int64(m.Body), Detail: int64(size)<<32 | int64(wire.Sum(0, m.Answer)),
	}, m.Until)
	for i := 1; i < memoNotes(size); i++ {
		var part [noteBytes]byte
		copy(part[:], m.Answer[(i-1)*noteBytes:])
		s.note(&Note{
			Key: memoKey(m.Key, i), Count: get48(part[0:]), Detail: get48(part[6:]), At: int64(binary.LittleEndian.Uint32(part[12:])),
		}, m.Until)
	}
}

// Forget ends a memo before its time. What is not there, or not decided here any more, stays as it is.
func (t *Table) Forget(now algorithms.Now, k Key) {
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	head := [...]Note{{Key: k}}
	if t.gates.isShut(k.Partition()) || !s.notes(head[:], now) {
		return
	}
	for i := range memoNotes(int(head[0].Detail >> 32)) {
		if p := s.find(memoKey(k, i)); p.found() {
			// As after a reset: it stays until it has replaced its copies.
			g := p.home()
			g.records[p.slot()].state, g.marks[p.slot()] = algorithms.State{}, newMark(noteKind, 0)
			s.soil(p, everyone)
		}
	}
}

func append48(b []byte, v int64) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40))
}

func get48(b []byte) int64 {
	return int64(binary.LittleEndian.Uint32(b)) | int64(binary.LittleEndian.Uint16(b[4:]))<<32
}

// Amendment is what a person changes about counters of one subject.
type Amendment struct {
	Ops   []Op // costs may be below zero: a reward. They get their Decision: that of a check without a cost, after the change
	Reset bool // the counters become fresh
	// Memo, unless it is nil, makes it happen once: where it is there already nothing changes. Answer makes what it is to keep.
	Memo     *Memo
	Answer   func(a *Amendment) []byte
	Used     []int64 // set by Amend: what is used of each op's limit, after the change
	Repeated bool    // set by Amend: it had happened before, and neither Ops nor Used are set
}

// Amend changes counters of one subject. It fails, and does nothing, with ErrShut, ErrFull or ErrBody.
func (t *Table) Amend(now algorithms.Now, a *Amendment) error {
	k := a.Ops[0].Key
	s := t.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	a.Used, a.Repeated = a.Used[:0], false
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}
	room := len(a.Ops)
	if a.Memo != nil {
		found, err := s.recall(now, a.Memo)
		if a.Repeated = found; found || err != nil {
			return err
		}
		room += memoNotes(len(a.Ops) * mostAnswer)
	}
	if !t.roomFor(s, k, now, room, a.Ops) {
		return ErrFull
	}
	for i := range a.Ops {
		op := &a.Ops[i]
		if err := t.amend(s, now, op, a.Reset); err != nil {
			return err // nothing is left of room that was just made
		}
		used, d := t.usageHeld(s, now, op.Key, op.Limit)
		a.Used, op.Decision = append(a.Used, used), d
	}
	if a.Memo != nil {
		a.Memo.Answer = a.Answer(a)
		s.remember(a.Memo)
	}
	return nil
}

// mostAnswer is how many bytes of a memo's answer may be about one op.
const mostAnswer = 64

// amend changes one counter of the shard, which is held.
func (t *Table) amend(s *shard, now algorithms.Now, op *Op, reset bool) error {
	switch {
	case reset:
		return t.reset(s, now, op.Key, op.Limit)
	case op.Cost < 0:
		return t.changeHeld(s, now, op.Key, op.Limit, reward(op.Limit, now, -op.Cost))
	case op.Cost > 0:
		return t.changeHeld(s, now, op.Key, op.Limit, penalty(op.Limit, now, op.Cost))
	}
	return nil
}
