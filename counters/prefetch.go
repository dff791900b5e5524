package counters

// Prefetch starts loading k's counter into the processor's caches, and returns
// at once. It does nothing if the gate of k's partition is shut. Call it as
// soon as the key is known and do other work before Take, which then waits less
// for memory.
func (t *Table) Prefetch(k Key) {
	if t.gates.isShut(k.Partition()) {
		return
	}
	n := t.shardIndex(k)
	if group := t.hints[n].groupOf(k); group != 0 {
		prefetch(&t.shards[n], group)
	}
}

// PrefetchPays reports whether the table is so large that Prefetch saves more time than it takes.
func (t *Table) PrefetchPays() bool { return t.outgrewCaches.Load() }

// cachedCounters is how many counters a processor's own caches hold, for PrefetchPays: some 3 MB.
const cachedCounters = 1 << 16

// prefetch loads the whole group, because only its first line tells which slot holds the counter.
var _ [0]struct{} = [groupBytes - 6*cacheLine]struct{}{}
