package limiter

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

const hostileRules = "rules:\n  - {name: per-tenant, key: [tenant], limits: [{limit: 5, per: 1h, algorithm: fixed-window}]}\n"

// chosen returns n names and a victim's name, all with hashes that begin with
// the same bits. It tries millions of names, so they and their hashes are made
// in place.
func chosen(n int, shift uint, hash func(name []byte) uint64) (names []string, victim string) {
	name := []byte("x")
	for i := int64(0); len(names) <= n; i++ {
		name = strconv.AppendInt(name[:1], i, 10)
		if hash(name)>>shift == 5 {
			names = append(names, string(name))
		}
	}
	return names[:n], names[n]
}

// withoutKey returns the hash with which anyone could locate a tenant's
// counters if subjects were hashed without a key.
func withoutKey() func(name []byte) uint64 {
	seed := append(binary.LittleEndian.AppendUint32(nil, uint32(len("per-tenant"))), "per-tenant"...)
	seed = append(seed, 0)
	var b []byte
	return func(name []byte) uint64 {
		b = append(binary.LittleEndian.AppendUint32(append(b[:0], seed...), uint32(len(name))), name...)
		return xxh3.Hash128(b).Hi
	}
}

// withKey returns the hash that only someone with the cluster's secret can compute.
func withKey(t *testing.T, set *rules.Set) func(name []byte) uint64 {
	var m rules.Match
	key := make([]string, 1)
	return func(name []byte) uint64 {
		key[0] = string(name)
		expect.NoError(t, set.MatchKey(set.Rules[0], key, &m))
		return m.Hits[0].Subject.Hi
	}
}

// An attacker who chooses names so that their counters lie next to a tenant's
// locks no tenant out, whether the names share a shard by the public hash or by
// the cluster's key. 9,900 names, with six checks each, were once enough in a
// table of the default size.
func TestChosenNamesLockNobodyOut(t *testing.T) {
	set := compile(t, 1, hostileRules).Keyed(bytes.Repeat([]byte{7}, 32))
	for name, tt := range map[string]struct {
		bound int64
		shift uint // bits to cut off a hash's first half; the rest select at most the shard
		names int
		each  int
		hash  func(name []byte) uint64
	}{
		"59,400 checks by the public hash": {10_000_000, 54, 9_900, 6, withoutKey()},
		"a million by the public hash":     {1_000_000, 58, 32_259, 31, withoutKey()},
		"59,400 checks with the key":       {10_000_000, 54, 9_900, 6, withKey(t, set)},
		"a million with the key":           {1_000_000, 58, 32_259, 31, withKey(t, set)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := counters.New(tt.bound)
			defer table.Close()
			l := New(table, NewClock())
			defer l.Clock().Close()
			l.SetRules(set)
			var a Answer
			check := func(tenant string) bool {
				expect.NoError(t, l.Check(&Query{Attributes: []rules.Attribute{{Name: "tenant", Value: tenant}}}, &a))
				return a.Allowed
			}
			names, victim := chosen(tt.names, tt.shift, tt.hash)
			for _, name := range names {
				for range tt.each {
					check(name)
				}
			}
			if !check(victim) {
				t.Errorf("the victim is locked out: %+v", a.Limits)
			}
			for i := range 1000 {
				if !check("someone else " + strconv.Itoa(i)) {
					t.Fatalf("someone else is locked out: %+v", a.Limits)
				}
			}
			if check(names[0]) {
				t.Error("a tenant that is refused was forgotten")
			}
			if st := table.Stats(); st.Refused+st.Evicted != 0 {
				t.Errorf("have %+v", st)
			}
		})
	}
}
