package resp

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Bounds of a command.
const (
	maxArguments = 1024
	maxCommand   = 64 << 10 // bytes, with the lengths of its arguments
	// A caller that has not shown a valid token yet has these bounds.
	maxStrangerArguments = 10
	maxStrangerCommand   = 16 << 10

	maxInline = 1 << 10 // bytes of a command that is typed by hand
	maxHeader = 32      // bytes of a line that announces a length
)

// emptyLine may stand between commands.
var emptyLine = []byte("\r\n")

// protocolError is an error in the framing of commands: the last reply before
// the connection closes.
type protocolError string

// Error returns the reply, without ERR.
func (e protocolError) Error() string { return string(e) }

// errHTTP means that the caller speaks HTTP. It gets no answer: a page in a
// browser may have sent it.
const errHTTP = protocolError("a request of HTTP")

// reader finds commands in the input of a connection. It remembers how far an
// incomplete command goes, so that no byte is looked at again when more
// arrives.
type reader struct {
	stranger   bool // smaller bounds hold
	hadArray   bool // no inline command may follow
	incomplete command
}

// command is a command as far as it has arrived. Positions count from its first byte.
type command struct {
	at      int     // the bytes before it have been read
	missing int     // arguments still to come; 0 before the first line has been read
	next    int     // announced length of the next argument; −1 before its line has been read
	args    []int32 // where each argument begins and ends
}

// keptPlaces is the capacity up to which args is kept for the next command.
const keptPlaces = 32

// reset prepares c for the next command.
func (c *command) reset() {
	args := c.args[:0]
	if cap(args) > keptPlaces {
		args = nil
	}
	*c = command{args: args, next: -1}
}

// read reads the command that begins b and appends its arguments, which are
// parts of b, to args. length is how many bytes it takes. If the command has
// not arrived as a whole, length is 0, and read must be called again with the
// same bytes and more. A command without arguments does nothing.
func (r *reader) read(b []byte, args [][]byte) (_ [][]byte, length int, err error) {
	c := &r.incomplete
	if c.missing == 0 {
		c.reset()

		// redis-cli --pipe sends an empty line before its last command. The rest
		// of the line may be on its way.
		if r.hadArray && string(b) == "\r" {
			return args, 0, nil
		}
		if r.hadArray && bytes.HasPrefix(b, emptyLine) {
			return args, len(emptyLine), nil
		}

		if len(b) > 0 && b[0] != '*' {
			return r.readInline(b, args)
		}

		count, ok, err := r.readLength(b, '*')
		if err != nil || !ok {
			return args, 0, err
		}

		r.hadArray = true
		switch {
		case count > r.mostArguments() && r.stranger:
			return args, 0, protocolError("Protocol error: unauthenticated multibulk length")
		case count > r.mostArguments():
			return args, 0, invalidLength('*')
		case count <= 0:
			length := c.at
			c.reset()
			return args, length, nil
		}
		c.missing = count
	}

	for c.missing > 0 {
		arrived, err := r.readArgument(b)
		if err != nil || !arrived {
			return args, 0, err
		}
		c.missing--
	}

	for i := 0; i < len(c.args); i += 2 {
		// The capacity ends with the argument, so that nobody appends into the
		// next one.
		args = append(args, b[c.args[i]:c.args[i+1]:c.args[i+1]])
	}
	length = c.at
	c.reset()
	return args, length, nil
}

func (r *reader) mostArguments() int {
	if r.stranger {
		return maxStrangerArguments
	}
	return maxArguments
}

func (r *reader) mostBytes() int {
	if r.stranger {
		return maxStrangerCommand
	}
	return maxCommand
}

// readArgument reads one argument of an array. It reports false if the argument
// has not arrived.
func (r *reader) readArgument(b []byte) (arrived bool, err error) {
	c := &r.incomplete
	if c.next < 0 {
		length, ok, err := r.readLength(b, '$')
		if err != nil || !ok {
			return false, err
		}
		switch {
		case length > r.mostBytes()-c.at && r.stranger:
			return false, protocolError("Protocol error: unauthenticated bulk length")
		case length < 0, length > r.mostBytes()-c.at:
			return false, invalidLength('$')
		}
		c.next = length
	}

	end := c.at + c.next
	if len(b) < end+2 {
		return false, nil
	}
	if b[end] != '\r' || b[end+1] != '\n' {
		return false, protocolError("Protocol error: an argument is longer than announced")
	}
	c.args = append(c.args, int32(c.at), int32(end))
	c.at = end + 2
	c.next = -1
	return true, nil
}

// readLength reads a line with a length: the sign that it must begin with, and
// a number. It reports false if the line has not arrived.
func (r *reader) readLength(b []byte, sign byte) (length int, ok bool, err error) {
	c := &r.incomplete
	line := b[c.at:]
	if len(line) == 0 {
		return 0, false, nil
	}

	if line[0] != sign {
		return 0, false,
			protocolError(fmt.Sprintf("Protocol error: expected '%c', got '%s'", sign, printable(line[:1])))
	}

	if n := shortLength(line); n >= 0 { // nearly all lengths are short
		c.at += len("$0\r\n")
		if n > 9 {
			c.at++
		}
		return n, true, nil
	}

	end := bytes.IndexByte(line[:min(len(line), maxHeader)], '\r')
	switch {
	case end < 0 && len(line) >= maxHeader:
		return 0, false, invalidLength(sign)
	case end < 0 || end+1 == len(line):
		return 0, false, nil
	case line[end+1] != '\n':
		return 0, false, invalidLength(sign)
	}

	n, good := parseInt(line[1:end])
	// Positions are kept in 32 bits. The real bounds are lower.
	if !good || int64(int32(n)) != n {
		return 0, false, invalidLength(sign)
	}

	c.at += end + 2
	return int(n), true, nil
}

// shortLength returns the length that a whole line announces in one or two
// digits; −1 if it is no such line.
func shortLength(line []byte) int {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	switch {
	case len(line) >= 4 && line[2] == '\r' && line[3] == '\n' && digit(line[1]):
		return int(line[1] - '0')
	case len(line) >= 5 && line[3] == '\r' && line[4] == '\n' && digit(line[1]) && line[1] != '0' && digit(line[2]):
		return 10*int(line[1]-'0') + int(line[2]-'0')
	}
	return -1
}

func invalidLength(sign byte) error {
	if sign == '*' {
		return protocolError("Protocol error: invalid multibulk length")
	}
	return protocolError("Protocol error: invalid bulk length")
}

// readInline reads a command that is typed by hand: words in a line.
func (r *reader) readInline(b []byte, args [][]byte) (_ [][]byte, length int, err error) {
	end := bytes.IndexByte(b, '\n')
	line := b[:max(end, 0)]
	if end < 0 {
		line = b
	}

	if r.hadArray {
		return args, 0, protocolError(fmt.Sprintf("Protocol error: expected '*', got '%s'", printable(b[:1])))
	}

	// This comes before any error reply: a page must get no answer at all.
	if isHTTP(line) {
		return args, 0, errHTTP
	}

	if len(line) > maxInline {
		return args, 0, protocolError("Protocol error: too big inline request")
	}

	if end < 0 {
		return args, 0, nil
	}

	line = bytes.TrimSuffix(line, []byte("\r"))
	for _, char := range line {
		if char < ' ' && char != '\t' || char == 0x7f {
			return args, 0, protocolError("Protocol error: a control character in an inline request")
		}
	}

	words := bytes.Fields(line)
	if len(words) > r.mostArguments() {
		return args, 0, protocolError("Protocol error: too big inline request")
	}

	return append(args, words...), end + 1, nil
}

// httpMethods are the methods that a line of HTTP may begin with.
var httpMethods = [...]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PRI"}

// isHTTP reports whether a line, which may be incomplete, is one of a request
// of HTTP: a page in a browser must not get a command through, whatever it
// writes into the body.
func isHTTP(line []byte) bool {
	if len(line) > maxInline {
		line = line[:maxInline]
	}

	text := strings.ToUpper(string(line))
	if strings.HasPrefix(text, "HOST:") || strings.Contains(text, "HTTP/") {
		return true
	}

	for _, method := range httpMethods {
		rest, ok := strings.CutPrefix(text, method)
		if ok && strings.TrimLeft(rest, " \t\r\n") != rest {
			return true
		}
	}

	return false
}

// parseInt parses a decimal number of 64 bits as Redis does: without blanks, a
// plus sign or leading zeros.
func parseInt(b []byte) (n int64, ok bool) {
	digits := b
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		digits = b[1:]
	}

	if len(digits) == 0 || len(digits) > 19 || digits[0] == '0' && len(b) > 1 {
		return 0, false
	}

	var u uint64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		u = u*10 + uint64(c-'0')
	}

	switch {
	case negative && u <= 1<<63:
		return -int64(u), true
	case !negative && u < 1<<63:
		return int64(u), true
	}

	return 0, false
}

// parseLoosely parses a number as redis-cell and throttlecrab do: leading zeros
// and a plus sign are allowed.
func parseLoosely(b []byte) (n int64, ok bool) {
	n, ok = parseInt(b)
	if ok {
		return n, true
	}
	n, err := strconv.ParseInt(string(b[:min(len(b), 64)]), 10, 64)
	return n, err == nil && len(b) <= 64
}

// printable returns a caller's text without control characters, shortened to 128 bytes.
func printable(b []byte) string {
	const most = 128
	text := strings.ToValidUTF8(string(b[:min(len(b), most)]), "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}
