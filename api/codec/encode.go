package codec

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(b []byte, s string) []byte {
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

			// U+2028 and U+2029 are line terminators in JavaScript.
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

// AppendProblem appends e as a problem+json object.
func AppendProblem(b []byte, e *api.Error) []byte {
	b = append(b, `{"type":"about:blank",`...)
	b = AppendProblemFields(b, e)
	if e.Line > 0 {
		b = AppendInt(b, `,"line":`, int64(e.Line))
	}

	if e.Mistakes != nil {
		list, err := json.Marshal(e.Mistakes)
		if err != nil {
			list = []byte("[]") // strings and numbers can't fail
		}
		b = append(append(b, `,"errors":`...), list...)
	}

	return append(b, '}')
}

// AppendProblemFields appends the fields that a problem+json object and an
// error in a batch have in common.
func AppendProblemFields(b []byte, e *api.Error) []byte {
	b = append(b, `"status":`...)
	b = strconv.AppendInt(b, int64(e.Status()), 10)
	b = append(b, `,"title":`...)
	b = AppendString(b, e.Title())
	b = append(b, `,"code":`...)
	b = AppendString(b, string(e.Code))
	b = append(b, `,"detail":`...)
	return AppendString(b, e.Detail)
}

// AppendBool appends name verbatim, then v.
func AppendBool(b []byte, name string, v bool) []byte {
	b = append(b, name...)
	return strconv.AppendBool(b, v)
}

// AppendInt appends name verbatim, then v.
func AppendInt(b []byte, name string, v int64) []byte {
	b = append(b, name...)
	return strconv.AppendInt(b, v, 10)
}

// Millis returns d in whole milliseconds, rounded up; -1 for algorithms.Never.
func Millis(d time.Duration) int64 { return roundUp(d, time.Millisecond) }

// seconds returns d in whole seconds, rounded up; -1 for algorithms.Never.
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
