package peer

import (
	"encoding/binary"
	"errors"
	"slices"
)

const (
	// largestMessage bounds the body of a message, in bytes.
	largestMessage = 16 << 20
	// messageHead is the size of a header in bytes: the length of the body, the
	// kind, the method or code, and the number of the call.
	messageHead = 4 + 1 + 1 + 8
)

// messageKind is the second field of a header.
type messageKind uint8

const (
	messageCall messageKind = iota + 1
	// messageSend is one-way: its id is 0, and nothing answers it.
	messageSend
	messageReply
	messageFailure
	messageBeat // a heartbeat: shows that its sender is alive, and is otherwise empty
)

// message is what both ends of a connection exchange.
type message struct {
	kind         messageKind
	methodOrCode uint8  // the method of calls, the code of failures
	id           uint64 // of the call, which its answer repeats; 0 in messages without an answer
	body         []byte
}

func (m message) head() (h [messageHead]byte) {
	binary.LittleEndian.PutUint32(h[:], uint32(len(m.body)))
	h[4], h[5] = byte(m.kind), m.methodOrCode
	binary.LittleEndian.PutUint64(h[6:], m.id)
	return h
}

var errMessage = errors.New("the remote sent a malformed message")

// assembler splits the received bytes into messages. Its memory grows with the
// data that has arrived, never with the length that a message claims.
type assembler struct{ partial []byte }

// feed calls visit for every message that b completes. The bodies are valid during visit.
func (a *assembler) feed(b []byte, visit func(message) error) error {
	// Either nothing is buffered, and the messages are read from b itself. Or the
	// beginning of a message is buffered: then b is appended to it, and from here on
	// b is partial.
	held := len(a.partial) > 0
	if held {
		a.partial = append(a.partial, b...)
		b = a.partial
	}

	rest := b
	for {
		m, n, err := parseMessage(rest)
		if err != nil {
			return err
		}

		if n == 0 {
			break
		}
		if err := visit(m); err != nil {
			return err
		}
		rest = rest[n:]
	}

	// If b is partial and no message is complete, there is nothing to copy.
	switch {
	case cap(a.partial) > 2*readSize && len(rest) <= readSize:
		a.partial = slices.Clone(rest) // one large message must not hold memory forever
	case !held || len(rest) < len(b):
		a.partial = append(a.partial[:0], rest...)
	}
	return nil
}

// parseMessage returns the message at the start of b and its length, which is 0
// if b holds only a part of it.
func parseMessage(b []byte) (m message, n int, err error) {
	if len(b) < messageHead {
		return m, 0, nil
	}

	length := binary.LittleEndian.Uint32(b)
	if length > largestMessage {
		return m, 0, errMessage
	}

	n = messageHead + int(length)
	if len(b) < n {
		return m, 0, nil
	}
	m = message{kind: messageKind(b[4]), methodOrCode: b[5], id: binary.LittleEndian.Uint64(b[6:]),
		body: b[messageHead:n:n]}
	return m, n, nil
}
