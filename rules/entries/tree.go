package entries

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// fanOut is the number of children of a node, on both levels of a tree. With
// 100,000 keys, a bucket has one or two.
const fanOut = 256

// Hashes are unpredictable, so that nobody can choose keys that share a bucket.
var (
	seed         = maphash.MakeSeed()
	secret       = rand.Uint64()
	otherSecret  = rand.Uint64()
	hashRotation = 29
)

// Key is a key of a [Tree].
type Key interface {
	comparable
	// Hash returns a hash of the whole key. HashText and HashWords make hashes
	// that nobody can predict.
	Hash() uint64
}

// Text is a text as a key.
type Text string

// Hash implements [Key].
func (t Text) Hash() uint64 { return HashText(string(t)) }

// HashText returns the hash of a text, which differs from process to process.
func HashText(s string) uint64 { return maphash.String(seed, s) }

// HashWords is [HashText] for two numbers.
func HashWords(a, b uint64) uint64 {
	high, low := bits.Mul64(a^secret, bits.RotateLeft64(b, hashRotation)^otherSecret)
	h := high ^ low
	// If one factor is 0, the first product loses the other word. The second
	// product brings it back.
	high, low = bits.Mul64(h^otherSecret, b^secret)
	return high ^ low
}

// Tree is an immutable map. The zero value is empty. With and Without return
// changed copies that share nearly everything: they copy about 8 KiB, or less
// between Edit and Done. Lookups allocate nothing. The order of its keys
// differs from process to process.
type Tree[K Key, V any] struct {
	root *[fanOut]*[fanOut][]pair[K, V]
	n    int
	edit *edit // nil: all nodes may be shared
}

// edit says which nodes a tree has copied already. It does not share these, so
// further changes may be made in place.
type edit struct {
	root     bool
	branches [fanOut]bool
}

type pair[K Key, V any] struct {
	key   K
	value V
}

// place returns the positions of a key on both levels.
func place[K Key](key K) (first, second int) {
	h := key.Hash()
	return int(h & (fanOut - 1)), int(h >> 8 & (fanOut - 1))
}

// Len returns the number of keys.
func (t Tree[K, V]) Len() int { return t.n }

// Get returns the value of a key.
func (t Tree[K, V]) Get(key K) (value V, ok bool) {
	if t.root == nil {
		return value, false
	}

	first, second := place(key)
	branch := t.root[first]
	if branch == nil {
		return value, false
	}

	for i := range branch[second] {
		p := &branch[second][i]
		if p.key == key {
			return p.value, true
		}
	}

	return value, false
}

// Edit returns t for many changes in a row. Until Done, only the result of the
// last change may be used.
func (t Tree[K, V]) Edit() Tree[K, V] {
	t.edit = &edit{}
	return t
}

// Done returns t after the changes, immutable again.
func (t Tree[K, V]) Done() Tree[K, V] {
	t.edit = nil
	return t
}

// With returns a copy of t in which key has a value.
func (t Tree[K, V]) With(key K, value V) Tree[K, V] {
	bucket := t.open(key)
	list := slices.Clone(*bucket)
	if i := indexOf(list, key); i >= 0 {
		list[i].value = value
	} else {
		list = append(list, pair[K, V]{key, value})
		t.n++
	}
	*bucket = list
	return t
}

// Without returns a copy of t without key, or t if it has no such key.
func (t Tree[K, V]) Without(key K) Tree[K, V] {
	_, have := t.Get(key)
	if !have {
		return t
	}

	bucket := t.open(key)
	i := indexOf(*bucket, key)
	*bucket = slices.Delete(slices.Clone(*bucket), i, i+1)
	if len(*bucket) == 0 {
		*bucket = nil
	}
	t.n--
	return t
}

func indexOf[K Key, V any](list []pair[K, V], key K) int {
	return slices.IndexFunc(list, func(p pair[K, V]) bool { return p.key == key })
}

// open gives t its own copy of the path to a key's bucket, and returns the
// bucket in it. The bucket itself is still shared.
func (t *Tree[K, V]) open(key K) *[]pair[K, V] {
	first, second := place(key)
	if t.edit == nil || !t.edit.root {
		root := new([fanOut]*[fanOut][]pair[K, V])
		if t.root != nil {
			*root = *t.root
		}
		t.root = root
	}

	if t.edit == nil || !t.edit.branches[first] {
		branch := new([fanOut][]pair[K, V])
		if t.root[first] != nil {
			*branch = *t.root[first]
		}
		t.root[first] = branch
	}

	if t.edit != nil {
		t.edit.root = true
		t.edit.branches[first] = true
	}

	return &t.root[first][second]
}

// All calls yield for each key and its value, in any order.
func (t Tree[K, V]) All(yield func(K, V) bool) {
	if t.root == nil {
		return
	}

	for _, branch := range t.root {
		if branch == nil {
			continue
		}

		for _, bucket := range branch {
			for _, p := range bucket {
				if !yield(p.key, p.value) {
					return
				}
			}
		}
	}
}

// diff calls yield for each key whose values in old and t may differ, with both
// values, which are zero where the key is missing. It skips the branches and
// buckets that both trees share.
func (t Tree[K, V]) diff(old Tree[K, V], yield func(key K, before, after V)) {
	var none [fanOut]*[fanOut][]pair[K, V]
	a, b := &none, &none
	if old.root != nil {
		a = old.root
	}
	if t.root != nil {
		b = t.root
	}

	for i := range a {
		if a[i] == b[i] {
			continue
		}

		var empty [fanOut][]pair[K, V]
		x, y := &empty, &empty
		if a[i] != nil {
			x = a[i]
		}
		if b[i] != nil {
			y = b[i]
		}

		for j := range x {
			diffBuckets(x[j], y[j], yield)
		}
	}
}

// diffBuckets is diff for one bucket.
func diffBuckets[K Key, V any](old, now []pair[K, V], yield func(key K, before, after V)) {
	if len(old) == len(now) && (len(old) == 0 || &old[0] == &now[0]) {
		return
	}

	var zero V
	for _, p := range old {
		after := zero
		if i := indexOf(now, p.key); i >= 0 {
			after = now[i].value
		}
		yield(p.key, p.value, after)
	}

	for _, p := range now {
		if indexOf(old, p.key) < 0 {
			yield(p.key, zero, p.value)
		}
	}
}
