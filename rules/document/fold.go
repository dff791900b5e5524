package document

import (
	"strings"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/text/unicode/norm"
)

// Folding says which spellings of an attribute's values are the same. The zero
// folding distinguishes all.
type Folding struct{ trim, lower, nfc, path bool }

// Fold returns the spelling that stands for s. Folding the result again changes
// nothing. If the result is neither s nor a part of s, Fold appends it to b,
// and returns b extended. folded shares the memory of s or of extended.
func (f Folding) Fold(b []byte, s string) (folded string, extended []byte) {
	start := len(b)
	if f.path && strings.IndexByte(s, '%') >= 0 {
		b = appendDecoded(b, s)
		s = viewOf(b[start:])
	}

	if f.lower && !isLower(s) {
		start = len(b)
		b = appendLower(b, s)
		s = viewOf(b[start:])
	}

	if f.nfc && !isASCII(s) && !norm.NFC.IsNormalString(s) {
		start = len(b)
		b = norm.NFC.AppendString(b, s)
		s = viewOf(b[start:])
	}

	switch {
	case f.path && !isCleanPath(s, f.trim):
		start = len(b)
		b = appendCleanPath(b, s, f.trim)
		s = viewOf(b[start:])
	case f.trim:
		s = strings.TrimSpace(s)
	}

	return s, b
}

// viewOf returns b as a string that shares its memory.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// isLower reports whether s is ASCII without capital letters.
func isLower(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return true
}

// appendLower appends s in lower case. Bytes that are not UTF-8 stay as they are.
func appendLower(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size <= 1 {
			b = append(b, s[i])
			i++
			continue
		}
		b = utf8.AppendRune(b, unicode.ToLower(r))
		i += size
	}
	return b
}

// appendDecoded appends s with each %XX replaced by its byte, until none is
// left, as in %2565. Some servers decode twice, and a value that is folded
// twice must stay the same.
func appendDecoded(b []byte, s string) []byte {
	start := len(b)
	for i := range len(s) {
		b = append(b, s[i])
		// A decoded byte may complete an escape that begins before it.
		for n := len(b); n-start >= 3 && b[n-3] == '%'; n = len(b) {
			high, low := hexDigit(b[n-2]), hexDigit(b[n-1])
			if high < 0 || low < 0 {
				break
			}
			b = append(b[:n-3], byte(high<<4|low))
		}
	}

	return b
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// isCleanPath reports whether appendCleanPath would certainly leave s as it is.
func isCleanPath(s string, trim bool) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c == ';' || trim && (c <= ' ' || c >= utf8.RuneSelf):
			return false
		case c == '/' && i+1 < len(s) && (s[i+1] == '/' || s[i+1] == '.'):
			return false
		}
	}
	return s == "/" || s != "" && s[0] != '.' && s[len(s)-1] != '/'
}

// appendCleanPath appends a decoded path without dot segments, empty segments,
// and what follows a ; in a segment. With trim, it also removes blanks around
// segments.
func appendCleanPath(b []byte, s string, trim bool) []byte {
	if trim {
		s = strings.TrimSpace(s)
	}
	if strings.HasPrefix(s, "/") {
		b = append(b, '/')
	}

	root := len(b)
	for segment := range strings.SplitSeq(s, "/") {
		if i := strings.IndexByte(segment, ';'); i >= 0 {
			segment = segment[:i]
		}
		if trim {
			segment = strings.TrimSpace(segment)
		}

		switch segment {
		case "", ".":
		case "..":
			for len(b) > root && b[len(b)-1] != '/' {
				b = b[:len(b)-1]
			}
			b = b[:max(root, len(b)-1)]
		default:
			if len(b) > root {
				b = append(b, '/')
			}
			b = append(b, segment...)
		}
	}

	return b
}
