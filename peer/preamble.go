package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

const (
	magic = "rlnode"
	// protocolVersion 2: messages stand straight on the connection, and subjects are hashed with the cluster's key. Nodes that
	// hash otherwise would count each check by other counters.
	protocolVersion = 2
	// A preamble has the magic, the version, one byte (what the connection is for, or the answer) and the length of
	// what follows.
	preambleHead    = len(magic) + 1 + 1 + 2
	largestPreamble = 1 << 10
	longestReason   = 512
)

// kind is what a connection is for.
type kind uint8

const (
	kindPeer kind = 1
	kindRaft kind = 2
	kindFar  kind = 3 // as kindPeer, between nodes of different regions
	// kindTunnel asks a relay for a tunnel: the node that it leads to follows, and what comes after that is for it.
	kindTunnel kind = 4
	// viaTunnel is a bit of connections that came by a tunnel.
	viaTunnel kind = 0x80
)

// What the answer to a preamble says.
const (
	answerWelcome = 1
	answerRefused = 2
)

var (
	// ErrRefused: the other side does not want this node, or this node not the other; the text says why.
	ErrRefused = errors.New("refused")

	errPreamble = errors.New("the remote does not speak this protocol")
	errTheirTLS = errors.New("the remote uses TLS here, and this node does not")
	errVersion  = errors.New("another version of the protocol")
)

func writePreamble(w io.Writer, what byte, body []byte) error {
	b := append(make([]byte, 0, preambleHead+len(body)), magic...)
	b = append(b, protocolVersion, what)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	_, err := w.Write(append(b, body...))
	return err
}

// readPreamble reads exactly one preamble, no byte more. With errVersion, nothing else of it is known.
func readPreamble(r io.Reader) (what byte, body []byte, err error) {
	var head [preambleHead]byte
	// The first byte tells a stranger, which may never send more.
	if _, err := io.ReadFull(r, head[:1]); err != nil {
		return 0, nil, err
	}
	switch head[0] {
	case magic[0]:
	case 0x15, 0x16: // TLS: alert, handshake
		return 0, nil, errTheirTLS
	default:
		return 0, nil, errPreamble
	}
	if _, err := io.ReadFull(r, head[1:]); err != nil {
		return 0, nil, err
	}
	if string(head[:len(magic)]) != magic {
		return 0, nil, errPreamble
	}
	if head[len(magic)] != protocolVersion {
		return 0, nil, errVersion
	}
	n := int(binary.BigEndian.Uint16(head[preambleHead-2:]))
	if n > largestPreamble-preambleHead {
		return 0, nil, errPreamble
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head[len(magic)+1], body, err
}

// greet is the dialling side's part: it says who we are and learns who answers.
func greet(c io.ReadWriter, k kind, self Identity) (Identity, error) {
	_ = writePreamble(c, byte(k), self.appendBinary(nil)) // if that fails, the other side may have said why
	what, body, err := readPreamble(c)
	if err != nil {
		return Identity{}, fmt.Errorf("read preamble: %w", err)
	}
	switch what {
	case answerWelcome:
		return parseIdentity(body)
	case answerRefused:
		return Identity{}, fmt.Errorf("%w by the remote: %s", ErrRefused, printable(body))
	}
	return Identity{}, errPreamble
}

// refuse tells the dialling side why. That it can't be told matters to nobody.
func refuse(w io.Writer, reason string) {
	_ = writePreamble(w, answerRefused, []byte(reason[:min(len(reason), longestReason)]))
}

// printable makes what a stranger sent fit for a log.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, string(b))
}
