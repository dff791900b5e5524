package replay

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

var (
	errNoAddress = errors.New("the line does not begin with an address")
	errNoTime    = errors.New("the line has no time such as [17/May/2015:10:05:03 +0000]")
)

// parseLog reads a line in Common or Combined Log Format:
//
//	address ident user [time] "request" status size "referer" "user agent"
//
// Address and time are enough for a check. If anything after them is malformed
// or missing, the check lacks attributes.
func (r *record) parseLog(line string) error {
	address, rest, _ := strings.Cut(line, " ")
	if !readableAddress(address) {
		return errNoAddress
	}
	t, before, after, ok := findTime(rest)
	if !ok {
		return errNoTime
	}
	r.time = t
	r.addAttribute("ip", address)
	if _, user, ok := strings.Cut(strings.Trim(before, " "), " "); ok {
		r.addPresent("user", strings.Trim(user, " "))
	}

	request, after := quotedField(after)
	r.addRequest(request)
	status, after := plainField(after)
	if len(status) == 3 && allDigits(status) {
		r.addAttribute("status", status)
	}
	_, after = plainField(after) // the size
	referer, after := quotedField(after)
	agent, _ := quotedField(after)
	r.addPresent("user_agent", agent)
	r.addPresent("referer", referer)
	return nil
}

// addPresent adds a field unless it is empty or "-", which marks a missing value.
func (r *record) addPresent(name, value string) {
	if value != "" && value != "-" && value != `""` {
		r.addAttribute(name, unescape(value))
	}
}

// addRequest adds the method and the endpoint of a request line, if present.
func (r *record) addRequest(request string) {
	method, target, _ := strings.Cut(unescape(request), " ")
	if !isToken(method) || method == "-" {
		return
	}

	r.addAttribute("method", method)
	target = strings.Trim(target, " ")
	if i := strings.LastIndex(target, " HTTP/"); i >= 0 {
		target = strings.TrimRight(target[:i], " ")
	} else if strings.HasPrefix(target, "HTTP/") {
		return
	}

	if endpoint := rules.RequestPath(target); endpoint != "" {
		r.addAttribute("endpoint", endpoint)
	}
}

// readableAddress reports whether s is an IP address or a host name, which
// servers write if they look names up: localhost, or a name with a dot whose
// last part is not a number.
func readableAddress(s string) bool {
	if document.IsAddress(s) {
		return true
	}
	if s == "" || len(s) > 255 {
		return false
	}

	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '-' && c != '.' && c != '_' {
			return false
		}
	}

	dot := strings.LastIndexByte(strings.TrimSuffix(s, "."), '.')
	return s == "localhost" || dot > 0 && !allDigits(strings.TrimSuffix(s[dot+1:], "."))
}

// maxBrackets bounds the brackets at which findTime looks for the time: a
// user's name may contain brackets, too.
const maxBrackets = 16

// findTime finds the bracketed time in s. It returns the text before and after it.
func findTime(s string) (t int64, before, after string, ok bool) {
	at := 0
	for range maxBrackets {
		i := strings.IndexByte(s[at:], '[')
		if i < 0 {
			break
		}
		at += i
		t, ok = parseLogTime(s[at:])
		if ok {
			return t, s[:at], s[at+len(logTime):], true
		}
		at++
	}

	return 0, "", "", false
}

const logTime = "[02/Jan/2006:15:04:05 -0700]"

// parseLogTime reads the time at the beginning of s, in the layout logTime. A
// leap second becomes the next second.
func parseLogTime(s string) (int64, bool) {
	if len(s) < len(logTime) {
		return 0, false
	}

	const second = len("[02/Jan/2006:15:04:") // offset of the seconds
	s, leap := s[:len(logTime)], time.Duration(0)
	if s[second:second+2] == "60" {
		s, leap = s[:second]+"59"+s[second+2:], time.Second
	}

	t, err := time.Parse(logTime, s)
	switch {
	case err != nil || t.Year() < 1900:
		return 0, false
	case t.Year() > 2261:
		return maxTime + 1, true // out of range; UnixNano may not hold it
	}

	return t.Add(leap).UnixNano(), true
}

// parseDigits returns the value of s, or −1 if s has other than digits. The
// caller bounds the length.
func parseDigits(s string) int {
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return -1
		}
		n = 10*n + int(s[i]-'0')
	}
	return n
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// isToken reports whether s is a token as HTTP defines it. Methods are tokens.
func isToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// plainField returns the field that ends at the next space, and the rest.
func plainField(s string) (field, rest string) {
	s = strings.TrimLeft(s, " ")
	field, rest, _ = strings.Cut(s, " ")
	return field, rest
}

// quotedField returns a quoted field, still escaped, and the rest. A backslash
// in the field escapes a quote. Without a closing quote, the field is the rest
// of the line. If s is not quoted, nothing is consumed.
func quotedField(s string) (field, rest string) {
	s = strings.TrimLeft(s, " ")
	if s == "" || s[0] != '"' {
		return "", s
	}

	s = s[1:]
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return s[:i], s[i+1:]
		case '\\':
			i++
		}
	}

	return s, ""
}

// unescape undoes the escapes that servers write: \" \\ \n \r \t and \x1f. Any other backslash stays.
func unescape(s string) string {
	at := strings.IndexByte(s, '\\')
	if at < 0 {
		return s
	}

	b := append(make([]byte, 0, len(s)), s[:at]...)
	for s = s[at:]; s != ""; {
		if len(s) > 1 && s[0] == '\\' && strings.IndexByte(`"\nrtx`, s[1]) >= 0 {
			if c, _, rest, err := strconv.UnquoteChar(s, '"'); err == nil {
				b, s = append(b, byte(c)), rest
				continue
			}
		}
		b, s = append(b, s[0]), s[1:]
	}

	return string(b)
}
