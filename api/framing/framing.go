// Package framing checks how requests over HTTP/1.1 follow one another on a
// connection. It passes on only what RFC 9112 allows to be read in exactly one
// way, so that a proxy in front and a server library behind it agree on where
// each request ends. The libraries alone would accept bare LFs, folded lines, a
// Content-Length next to a Transfer-Encoding, and more.
package framing

import (
	"bytes"
	"io"
	"strings"
)

// MaxHead bounds a request's first line and headers, in bytes.
const MaxHead = 16 << 10

// maxKeptLine is the capacity in bytes up to which a buffer for unfinished lines is reused.
const maxKeptLine = 1 << 10

// Checker tracks the bytes of one connection: whether they belong to a head, a
// body or a chunk line.
type Checker struct {
	part  part
	err   error // if not nil, nothing more is passed on
	heads int   // how many heads have ended

	line []byte // the start of an unfinished line
	// size is how many bytes the current head or the trailers have; in a
	// chunked body, by how much chunk lines exceed their allowance.
	size int
	left int64 // bytes of the current body or chunk still to come

	// The rest is about the current head.
	oldVersion             bool // it is HTTP/1.0
	hasHost, hasConnection bool // it has a Host, a Connection header
	hasLength, hasCoding   bool // it has a Content-Length, a Transfer-Encoding
}

// part is the part of a request that comes next on a connection.
type part uint8

const (
	partRequest part = iota
	partHeader
	partBody
	partChunkSize
	partChunk
	partChunkEnd
	partTrailer
)

// Error says what is wrong with a request's framing. The connection is closed after it.
type Error string

func (e Error) Error() string { return string(e) }

const (
	errLineEnd    Error = "a line does not end in CR LF"
	errFold       Error = "a header line begins with a blank"
	errName       Error = "a header's name has a character that is not allowed, or a blank before its colon"
	errValue      Error = "a header's value has a control character"
	errLine       Error = "the first line is not METHOD target HTTP/1.1"
	errTarget     Error = "the target must be a path, an http URL, or * for OPTIONS"
	errLength     Error = "Content-Length must be one number of at most 18 digits"
	errCoding     Error = "Transfer-Encoding must be chunked, given once, in HTTP/1.1"
	errBoth       Error = "Content-Length and Transfer-Encoding exclude each other"
	errHost       Error = "there must be exactly one Host, and it must name a host"
	errConnection Error = "Connection must be one list of at most 8 options, none of which names a header that frames the request"
	errChunk      Error = "a chunk must be its size in at most 8 hex digits, CR LF, that many bytes, CR LF, with few other bytes"
	errTrailer    Error = "a trailer names a header that frames the request"

	errCut Error = "the body ends before its last chunk"
	// ErrHeadTooLarge means that a head has more than MaxHead bytes.
	ErrHeadTooLarge Error = "the head is too large"
)

// scan returns how many leading bytes of b may be passed on. If that is not all, f.err says why.
func (f *Checker) scan(b []byte) int {
	if f.err != nil {
		return 0
	}

	for at := 0; at < len(b); {
		if f.part == partBody || f.part == partChunk {
			// The bytes of a body are counted and not looked at: a batch has
			// megabytes.
			n := min(f.left, int64(len(b)-at))
			at += int(n)
			f.left -= n
			if f.left == 0 {
				f.endData()
			}
			continue
		}

		end := bytes.IndexByte(b[at:], '\n')
		if end < 0 {
			// The bytes of the previous request do not count.
			if f.part == partRequest {
				f.size = 0
			}
			f.line = append(f.line, b[at:]...)
			if f.size+len(f.line) > MaxHead {
				f.err = f.tooLargeError()
				return at
			}
			return len(b)
		}

		line := b[at : at+end+1]
		first := len(f.line) == 0
		if !first {
			f.line = append(f.line, line...)
			line = f.line
		}

		part := f.part
		f.err = f.parseLine(line)
		if f.err != nil {
			if first && part == partRequest && line[0] != '\n' {
				at++ // pass on one byte: the library sends no error answer if it has read nothing
			}
			return at
		}

		f.line = f.line[:0]
		if cap(f.line) > maxKeptLine {
			f.line = nil
		}

		at += end + 1
	}

	return len(b)
}

// endData ends a body, or the data of a chunk.
func (f *Checker) endData() {
	if f.part == partChunk {
		f.part = partChunkEnd
		return
	}
	f.part = partRequest
}

// parseLine processes one line, including its line end.
func (f *Checker) parseLine(line []byte) error {
	n := len(line) - 2
	if n < 0 || line[n] != '\r' {
		return errLineEnd
	}

	if f.part == partRequest {
		f.size = 0 // the previous request is over
	}

	f.size += len(line)
	if f.size > MaxHead {
		return f.tooLargeError()
	}

	line = line[:n]
	switch f.part {
	case partRequest:
		return f.parseRequestLine(line)
	case partHeader:
		if n == 0 {
			return f.endHead()
		}
		return f.parseHeader(line)
	case partChunkSize:
		return f.parseChunkSize(line)
	case partChunkEnd:
		if n > 0 {
			return errChunk
		}
		f.part = partChunkSize
		return nil
	}

	if n == 0 { // the end of the trailers
		f.part = partRequest
		return nil
	}

	name, _, err := splitHeader(line)
	if err == nil && isFramingHeader(name) {
		err = errTrailer
	}

	return err
}

func (f *Checker) tooLargeError() error {
	// The parts are in order: those after the body are of chunks and trailers.
	if f.part > partBody {
		return errChunk
	}
	return ErrHeadTooLarge
}

// Err returns why nothing more is passed on; nil if input still is.
func (f *Checker) Err() error { return f.err }

// Heads returns how many heads have ended.
func (f *Checker) Heads() int { return f.heads }

// BodyRefused reports whether nothing more is passed on because of a body or its trailers.
func (f *Checker) BodyRefused() bool { return f.err != nil && f.part > partBody }

// TrailersRefused reports whether the trailers are invalid. The library does
// not report errors in trailers.
func (f *Checker) TrailersRefused() bool { return f.err != nil && f.part == partTrailer }

// parseRequestLine processes the first line of a request.
func (f *Checker) parseRequestLine(line []byte) error {
	// Nothing that the previous head said may count for this one.
	*f = Checker{part: partHeader, line: f.line, size: len(line) + 2, heads: f.heads}
	// The first and the last blank delimit the target. A blank in between belongs
	// to the target, which is then refused.
	i := bytes.IndexByte(line, ' ')
	j := bytes.LastIndexByte(line, ' ')
	if i == j || !allInClass(line[:max(i, 0)], classToken) {
		return errLine
	}

	method := line[:i]
	target := line[i+1 : j]
	version := line[j+1:]
	f.oldVersion = string(version) == "HTTP/1.0"
	if !f.oldVersion && string(version) != "HTTP/1.1" {
		return errLine
	}

	switch {
	case !allInClass(target, classTarget), string(method) == "CONNECT":
		// A proxy would turn an answer with 200 to CONNECT into a tunnel.
		return errTarget
	case target[0] == '/', hasPrefixFold(target, "http://"), hasPrefixFold(target, "https://"):
		return nil
	case string(target) == "*" && string(method) == "OPTIONS":
		return nil
	}

	return errTarget
}

// parseHeader processes a header line.
func (f *Checker) parseHeader(line []byte) error {
	name, value, err := splitHeader(line)
	if err != nil {
		return err
	}

	switch len(name) {
	case len("host"):
		if IsName(name, "host") {
			if f.hasHost || !allInClass(value, classHost) {
				return errHost
			}
			f.hasHost = true
		}
	case len("connection"):
		if IsName(name, "connection") {
			if _, ok := ConnectionList(value); !ok || f.hasConnection {
				return errConnection
			}
			f.hasConnection = true
		}
	case len("content-length"):
		if IsName(name, "content-length") {
			return f.parseContentLength(value)
		}
	case len("transfer-encoding"):
		if IsName(name, "transfer-encoding") {
			if f.hasLength {
				return errBoth
			}
			if f.oldVersion || f.hasCoding || !IsName(value, "chunked") {
				return errCoding
			}
			f.hasCoding = true
		}
	}

	return nil
}

func (f *Checker) parseContentLength(value []byte) error {
	// If a request has both, a proxy and the library might end the body in
	// different places.
	if f.hasCoding {
		return errBoth
	}
	if f.hasLength || len(value) == 0 || len(value) > 18 {
		return errLength
	}

	f.hasLength = true

	for _, c := range value {
		if c < '0' || c > '9' {
			return errLength
		}
		// 18 digits always fit.
		f.left = 10*f.left + int64(c-'0')
	}

	return nil
}

func (f *Checker) endHead() error {
	if !f.hasHost && !f.oldVersion {
		return errHost
	}

	f.heads++

	switch {
	case f.hasCoding:
		f.part, f.size = partChunkSize, 0
	case f.left > 0:
		f.part = partBody
	default:
		f.part = partRequest
	}

	return nil
}

// parseChunkSize processes the line that starts a chunk.
func (f *Checker) parseChunkSize(line []byte) error {
	i := 0
	for f.left = 0; i < len(line); i++ {
		digit := hexDigit(line[i])
		if digit < 0 {
			break
		}
		// This may overflow with more than 8 digits, which are refused below.
		f.left = f.left<<4 | int64(digit)
	}

	if i == 0 || i > 8 || i < len(line) && line[i] != ';' || !allInClass(line[i:], classValue) && i < len(line) {
		return errChunk
	}
	if f.left == 0 {
		f.part, f.size = partTrailer, 0
		return nil
	}

	// Allow as much overhead per chunk as net/http does. It bounds bodies of many tiny chunks.
	f.part, f.size = partChunk, max(0, f.size-16-int(2*f.left))
	return nil
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// splitHeader splits a header line into its name and its value, and trims the value.
func splitHeader(line []byte) (name, value []byte, err error) {
	if line[0] == ' ' || line[0] == '\t' {
		return nil, nil, errFold
	}

	i := 0
	for i < len(line) && classes[line[i]]&classToken != 0 {
		i++
	}

	if i == 0 || i == len(line) || line[i] != ':' {
		return nil, nil, errName
	}

	value = trim(line[i+1:])
	for _, c := range value {
		if classes[c]&classValue == 0 {
			return nil, nil, errValue
		}
	}

	return line[:i], value, nil
}

// trim removes blanks from both ends of b.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// isFramingHeader reports whether name is a header that determines where a
// request ends or which host it is for.
func isFramingHeader(name []byte) bool {
	return IsName(name, "content-length") || IsName(name, "transfer-encoding") || IsName(name, "host") ||
		IsName(name, "connection") || IsName(name, "trailer") || IsName(name, "expect")
}

// ConnectionList parses the value of Connection. closes means that the
// connection must be closed after the answer, because the list says close or
// has an unknown option. ok is false if the value is not a list, is too long,
// or names a header that frames the request.
func ConnectionList(value []byte) (closes, ok bool) {
	for n := 0; ; n++ {
		option, rest, more := bytes.Cut(value, []byte(","))
		option = trim(option)
		switch {
		case n == 8, len(option) > 0 && !allInClass(option, classToken), isFramingHeader(option):
			return false, false
		case len(option) == 0, IsName(option, "keep-alive"), IsName(option, "upgrade"),
			IsName(option, "http2-settings"), IsName(option, "te"):
		default:
			closes = true
		}

		if !more {
			return closes, true
		}

		value = rest
	}
}

// The character classes: bits of classes.
const (
	classToken uint8 = 1 << iota
	classValue
	classTarget
	classHost
)

var classes = func() (t [256]uint8) {
	for c := range t {
		if c >= ' ' && c != 0x7f || c == '\t' {
			t[c] |= classValue
		}
		if c > ' ' && c != 0x7f {
			t[c] |= classTarget
		}
		letter := '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' && c < 0x80
		if letter || c < 0x80 && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0 {
			t[c] |= classToken
		}
		if letter || c < 0x80 && bytes.IndexByte([]byte("!$%&'()*+,-.:;=[]_~"), byte(c)) >= 0 {
			t[c] |= classHost
		}
	}
	return t
}()

// allInClass reports whether b is not empty and all its characters belong to class.
func allInClass(b []byte, class uint8) bool {
	for _, c := range b {
		if classes[c]&class == 0 {
			return false
		}
	}
	return len(b) > 0
}

func hasPrefixFold(b []byte, lower string) bool {
	return len(b) >= len(lower) && bytes.EqualFold(b[:len(lower)], []byte(lower))
}

// Filter turns b and err, read from the underlying connection, into the result of Read.
func (f *Checker) Filter(b []byte, err error) (int, error) {
	n := f.scan(b)
	if err == io.EOF && f.err == nil && f.part > partBody {
		f.err = errCut // the library would take EOF for the end of the body
	}
	// Valid bytes are passed on first; the error comes with the next read.
	if f.err != nil && (n < len(b) || n == 0 || err == io.EOF) {
		err = f.err
	}
	return n, err
}

// IsName reports whether name, which has only token characters, equals lower, ignoring case.
func IsName(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i := range name {
		if name[i]|0x20 != lower[i] {
			return false
		}
	}
	return true
}

// SplitTarget returns the path and the query of a request's target, as they
// were sent. A proxy that decides by the path must see the same path as this
// node.
func SplitTarget(target string) (path, query string) {
	if target != "" && target[0] != '/' {
		if _, rest, ok := strings.Cut(target, "://"); ok {
			target = "/"
			if i := strings.IndexAny(rest, "/?"); i >= 0 {
				target = rest[i:]
			}
			if target[0] == '?' {
				target = "/" + target
			}
		}
	}

	path, query, _ = strings.Cut(target, "?")
	return path, query
}
