package partitions

import (
	"encoding/binary"
	"fmt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// Debts written down are a byte for the format, the wall clock in nanoseconds as a varint, and each debt: its flags in a
// byte, absent as a uvarint, and the rest as in a message, but for the cost, which is all of it.
const debtsFormat = 2 // 1: of a version that hashed subjects without a key

// debtWaits is the flag of a debt that waits.
const debtWaits = 1

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
	b = binary.AppendVarint(append(b, debtsFormat), now.Wall)
	for _, list := range k.debts.of {
		for key, d := range list {
			flags := byte(0)
			if d.waits {
				flags |= debtWaits
			}
			b = binary.AppendUvarint(append(b, flags), uint64(d.absent))
			b = appendDebt(b, key, d, now)
			b = binary.AppendUvarint(b, uint64(d.cost))
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
		return 0, fmt.Errorf("%w: unknown format", errMessage)
	}
	r := reader{b: b[1:]}
	passed := min(max(0, now.Wall-max(0, r.varint())), 1<<61)
	n := 0
	for r.err == nil && len(r.b) > 0 {
		key, d := r.debt(now, passed)
		if r.err != nil {
			break
		}
		if k.debts.n >= maxDebts || k.debts.get(key) != nil || d.over(now) {
			continue
		}
		*k.debts.at(key) = d
		n++
	}
	k.debts.changes++
	return n, r.err
}

// debt reads one that was written down so many nanoseconds ago.
func (r *reader) debt(now algorithms.Now, passed int64) (counters.Key, debt) {
	flags := r.b[0]
	r.b = r.b[1:]
	d := debt{waits: flags&debtWaits != 0, former: true}
	d.absent = int64(r.uvarint())
	key := counters.Key{Hi: r.uint64(), Lo: r.uint64()}
	d.limit = r.limit()
	age, window := int64(min(r.uvarint(), 1<<61)), r.varint()
	r.uvarint()
	d.cost = int64(r.uvarint())
	d.taken = algorithms.Taken{
		Steady: now.Steady - (age + passed), Window: window, Amount: d.limit.Amount, Burst: d.limit.Burst,
	}
	if r.err == nil && (d.cost < 1 || d.cost > maxOwed || d.absent < 0 || d.absent > d.cost || flags > debtWaits) {
		r.err = fmt.Errorf("%w: a debt is out of bounds", errMessage)
	}
	return key, d
}
