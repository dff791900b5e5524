package persist

import "github.com/rlnode/rlnode/counters"

// filter tells which counters a bucket of the file may hold: a Bloom filter, never wrong about a counter that is
// there, and about one in fifty that is not.
//
// When a counter moves to an earlier bucket (something was given back, or it was reset) the copies in later ones
// have to go, or they would come back to life once the newer one has expired. Looking into every later bucket at
// each write would cost more than the write.
//
// It grows by layers, each four times as large as the one before, and takes about 3 to 8 bytes for each counter
// of the bucket. The four bits of a counter lie in one word.
type filter struct {
	layers [][]uint64
	room   int // counters that the last layer can still take
}

const (
	firstLayer = 64 // words
	bitsEach   = 16 // of a layer, for each counter
)

// bits are the counter's bits in its word of each layer, and the number from which the word's place is taken.
// Keys are hashes, but of their own making.
func (f *filter) bits(k counters.Key) (mask, place uint64) {
	h := (k.Hi ^ k.Lo<<1) * 0x9E3779B97F4A7C15
	h ^= h >> 32
	return 1<<(h&63) | 1<<(h>>6&63) | 1<<(h>>12&63) | 1<<(h>>18&63), h >> 24
}

// has reports whether the bucket may hold k.
func (f *filter) has(k counters.Key) bool {
	mask, place := f.bits(k)
	for i := len(f.layers) - 1; i >= 0; i-- {
		if layer := f.layers[i]; layer[place&uint64(len(layer)-1)]&mask == mask {
			return true
		}
	}
	return false
}

// add records that the bucket holds k.
func (f *filter) add(k counters.Key) {
	if f.has(k) {
		return
	}
	if f.room == 0 {
		size := firstLayer
		if n := len(f.layers); n > 0 {
			size = 4 * len(f.layers[n-1])
		}
		f.layers = append(f.layers, make([]uint64, size))
		f.room = size * 64 / bitsEach
	}
	f.room--
	mask, place := f.bits(k)
	layer := f.layers[len(f.layers)-1]
	layer[place&uint64(len(layer)-1)] |= mask
}
