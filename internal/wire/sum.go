package wire

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBytes is the size of the sum that AppendSum adds, in bytes.
const sumBytes = crc32.Size

// Sum returns the CRC32C of parts, one after another, following data whose sum
// is before; before is 0 at the start.
func Sum(before uint32, parts ...[]byte) uint32 {
	for _, p := range parts {
		before = crc32.Update(before, castagnoli, p)
	}
	return before
}

// AppendSum appends the CRC32C of b[from:] to b.
func AppendSum(b []byte, from int) []byte {
	return binary.LittleEndian.AppendUint32(b, Sum(0, b[from:]))
}

// CutSum returns b without its sum, and reports whether the sum is right.
func CutSum(b []byte) (content []byte, ok bool) {
	end := len(b) - sumBytes
	if end < 0 || binary.LittleEndian.Uint32(b[end:]) != Sum(0, b[:end]) {
		return nil, false
	}
	return b[:end:end], true
}
