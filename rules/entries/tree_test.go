package entries

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// TestTree: trees agree with maps, whatever changes are made in a row, and no
// change is seen in trees from before it.
func TestTree(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		var tree Tree[Text, int]
		want := map[Text]int{}
		var old []Tree[Text, int]
		var oldWant []map[Text]int

		for range 30 {
			old = append(old, tree)
			oldWant = append(oldWant, maps.Clone(want))

			edits := random.IntN(2) == 0
			if edits {
				tree = tree.Edit()
			}
			for range random.IntN(200) {
				key := Text(fmt.Sprint(random.IntN(500)))
				if random.IntN(2) == 0 { // with a key or without it
					tree = tree.Without(key)
					delete(want, key)
					continue
				}
				value := random.Int()
				tree = tree.With(key, value)
				want[key] = value
			}
			if edits {
				tree = tree.Done()
			}
		}

		for i, one := range append(old, tree) {
			expected := want
			if i < len(oldWant) {
				expected = oldWant[i]
			}
			got := maps.Collect(one.All)
			if !maps.Equal(got, expected) || one.Len() != len(expected) {
				t.Fatalf("seed %d, tree %d: got %d keys, Len %d, want %d", seed, i, len(got), one.Len(), len(expected))
			}
			for key, value := range expected {
				if v, ok := one.Get(key); !ok || v != value {
					t.Fatalf("seed %d, tree %d: got %d, %t for %s, want %d", seed, i, v, ok, key, value)
				}
			}
		}
	}
}
