package resp

import (
	"crypto/sha256"
	"encoding/hex"
	"unicode/utf8"
	"unsafe"

	"github.com/rlnode/rlnode/rules/document"
)

// keptOfLongKey is how many bytes are kept of a key that is too long to be a
// value; a hash stands for the rest.
const keptOfLongKey = 480

// keyText returns a key of Redis, which is any bytes, as the text that a
// subject needs. No two keys of usual length have the same text: bytes that are
// not UTF-8, and percent signs, are percent-encoded. Most keys are their own
// text, which then points into key.
func keyText(key []byte) string {
	if isPlainKey(key) {
		return unsafe.String(unsafe.SliceData(key), len(key))
	}

	const digits = "0123456789ABCDEF"
	text := make([]byte, 0, len(key)+16)
	for rest := key; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if r == '%' || r == utf8.RuneError && size == 1 {
			text = append(text, '%', digits[rest[0]>>4], digits[rest[0]&15])
		} else {
			text = append(text, rest[:size]...)
		}
		rest = rest[size:]
	}
	if len(text) <= document.MaxValueBytes {
		return string(text)
	}

	sum := sha256.Sum256(key)
	text = append(text[:keptOfLongKey], '~')
	for !utf8.Valid(text) { // a character was cut
		text = append(text[:len(text)-2], '~')
	}
	return string(hex.AppendEncode(text, sum[:]))
}

// isPlainKey reports whether key is its own text.
func isPlainKey(key []byte) bool {
	ascii := true
	for _, c := range key {
		if c == '%' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return len(key) <= document.MaxValueBytes && (ascii || utf8.Valid(key))
}
