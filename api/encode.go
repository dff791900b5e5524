package api

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/algorithms"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			var r rune
			r, size = utf8.DecodeRuneInString(s[i:])
			// U+2028 and U+2029 end a line in JavaScript.
			if !(r == utf8.RuneError && size == 1) && r != '\u2028' && r != '\u2029' {
				i += size
				continue
			}
			b = append(b, s[from:i]...)
			switch r {
			case '\u2028':
				b = append(b, `\u2028`...)
			case '\u2029':
				b = append(b, `\u2029`...)
			default:
				b = append(b, `\ufffd`...)
			}
		} else {
			b = append(b, s[from:i]...)
			b = appendEscape(b, c)
		}
		i += size
		from = i
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// appendProblem appends e as a problem+json object.
func appendProblem(b []byte, e *Error) []byte {
	b = append(b, `{"type":"about:blank",`...)
	b = appendProblemFields(b, e)
	if e.mistakes != nil {
		list, err := json.Marshal(e.mistakes)
		if err != nil {
			list = []byte("[]") // numbers and strings can always be marshalled
		}
		b = append(append(b, `,"errors":`...), list...)
	}
	return append(b, '}')
}

// appendProblemFields appends the fields that an error in a batch has, too.
func appendProblemFields(b []byte, e *Error) []byte {
	kind := kinds[e.Code]
	b = append(b, `"status":`...)
	b = strconv.AppendInt(b, int64(kind.status), 10)
	b = append(b, `,"title":`...)
	b = appendString(b, kind.title)
	b = append(b, `,"code":`...)
	b = appendString(b, string(e.Code))
	b = append(b, `,"detail":`...)
	return appendString(b, e.Detail)
}

func appendBool(b []byte, name string, v bool) []byte {
	b = append(b, name...)
	return strconv.AppendBool(b, v)
}

func appendInt(b []byte, name string, v int64) []byte {
	b = append(b, name...)
	return strconv.AppendInt(b, v, 10)
}

// millis is d in whole milliseconds, rounded up; -1 for Never.
func millis(d time.Duration) int64 { return roundUp(d, time.Millisecond) }

// seconds is d in whole seconds, rounded up; -1 for Never.
func seconds(d time.Duration) int64 { return roundUp(d, time.Second) }

func roundUp(d, unit time.Duration) int64 {
	if d == algorithms.Never {
		return -1
	}
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
