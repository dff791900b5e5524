package partitions

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// Debts written down are a byte for the format, the wall clock in nanoseconds as a varint, and how many they are as a uvarint;
// then each debt: 1 if it waits, absent as a uvarint, and the rest as in a message; then the seals, as in a message.
const debtsFormat = 3 // 1 and 2: of versions that wrote limits otherwise

// DebtsChanged is a number that is another one when the debts are.
func (k *Keeper) DebtsChanged() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.debts.changes
}

// AppendDebts writes down what owners are to be told, for the next process of this node.
func (k *Keeper) AppendDebts(b []byte) []byte {
	now := k.cfg.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sealToWrite()
	b = binary.AppendVarint(append(b, debtsFormat), now.Wall)
	b = binary.AppendUvarint(b, uint64(k.debts.n))
	for _, list := range k.debts.of {
		for key, d := range list {
			b = binary.AppendUvarint(wire.AppendBool(b, d.waits), uint64(d.absent))
			b = appendDebt(b, key, &d.limit, d.taken, d.cost, now)
		}
	}
	for _, seals := range k.debts.seals {
		for _, s := range seals {
			b = s.append(b, now)
		}
	}
	return b
}

// RestoreDebts takes up what an earlier process of this node wrote down. Debts that are noted already stay as they are.
// It reports how many were taken up; those before an error are.
func (k *Keeper) RestoreDebts(b []byte) (int, error) {
	now := k.cfg.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(b) == 0 || b[0] != debtsFormat {
		return 0, errors.New("another version of rlnode has written them")
	}
	d := wire.NewDecoder(b[1:])
	passed := min(max(0, now.Wall-max(0, d.Varint())), 1<<61)
	restored := map[counters.Key]bool{}
	for range decodeCount(d) {
		key, one := decodeWritten(d, now, passed)
		if d.Failed() {
			break
		}
		if k.debts.n >= maxDebts || k.debts.get(key) != nil || one.over(now) {
			continue
		}
		*k.debts.at(key) = one
		restored[key] = true
	}
	for d.More() {
		if s := decodeSeal(d, now, passed); s != nil {
			s.told = true // by the process before, perhaps
			k.restoreSeal(s, restored)
		}
	}
	k.debts.changes++
	return len(restored), d.Done("debts")
}

// restoreSeal takes up a seal of debts that were restored.
func (k *Keeper) restoreSeal(s *seal, restored map[counters.Key]bool) {
	s.entries = slices.DeleteFunc(s.entries, func(e sealed) bool {
		return !restored[e.key] || k.debts.get(e.key).cost-k.debts.get(e.key).sealed < e.cost
	})
	if len(s.entries) == 0 {
		return
	}
	for i := range s.entries {
		k.debts.get(s.entries[i].key).sealed += s.entries[i].cost
	}
	k.debts.put(s)
}

// decodeWritten reads a debt that was written down so many nanoseconds ago.
func decodeWritten(d *wire.Decoder, now algorithms.Now, passed int64) (counters.Key, debt) {
	waits, absent := d.Bool(), int64(d.Uvarint())
	e := decodeDebt(d, now, passed)
	one := debt{limit: e.limit, taken: e.taken, cost: e.cost, absent: absent, waits: waits, former: true}
	if one.cost < 1 || one.absent < 0 || one.absent > one.cost {
		d.Failf("a debt is out of bounds")
	}
	return e.key, one
}
