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
	// magic ends with the format of preambles and identities. It never changes, so
	// that nodes of any two releases can tell each other why they can't talk.
	magic = "rlnode\x03"
	// preambleHead is the size of a preamble without its body: the magic, the
	// lowest and highest protocol versions that its sender supports, one byte (the
	// purpose of the connection, or the answer) and the length of the body.
	preambleHead    = len(magic) + 2 + 1 + 2
	largestPreamble = 1 << 10
	maxReason       = largestPreamble - preambleHead
)

// versions is the range of protocol versions that a build supports. After the
// preambles, both sides use the highest version that both support. A version
// covers frames and the messages of this package. The agreed state, and
// messages about it, depend on the feature level instead.
type versions struct{ lowest, highest uint8 }

// supportedVersions is the range of this build. Version 3 changed the messages
// about leases, copies and authority. A release that adds a version must keep
// supporting the previous one: otherwise no cluster could be upgraded to it
// node by node.
var supportedVersions = versions{lowest: 3, highest: 3}

func (v versions) String() string {
	if v.lowest == v.highest {
		return fmt.Sprintf("version %d", v.lowest)
	}
	return fmt.Sprintf("versions %d to %d", v.lowest, v.highest)
}

// highestCommon returns the highest version in both ranges, or 0 if there is none.
func (v versions) highestCommon(w versions) uint8 {
	best := min(v.highest, w.highest)
	if best >= max(v.lowest, w.lowest) {
		return best
	}
	return 0
}

// connKind is the purpose of a connection.
type connKind uint8

const (
	kindNear connKind = 1
	kindRaft connKind = 2
	kindFar  connKind = 3 // like kindNear, between nodes of different regions
	// kindTunnel asks a relay for a tunnel. The target node's ID follows, and all
	// bytes after it are for that node.
	kindTunnel connKind = 4
	// viaTunnel is a flag in the purpose of a connection made through a tunnel.
	viaTunnel connKind = 0x80
)

// Answers to a preamble.
const (
	answerWelcome = 1
	answerRefused = 2
)

var (
	// ErrRefused means that one side does not accept the other; the text says why.
	ErrRefused = errors.New("refused")

	errPreamble = errors.New("the remote does not speak this protocol")
	errKind     = errors.New("unknown purpose of a connection")
	errTheirTLS = errors.New("the remote uses TLS here, and this node does not")
)

// versionError means that the two sides share no version. It wraps ErrRefused.
type versionError struct{ text string }

func (e *versionError) Error() string { return e.text }

func (*versionError) Unwrap() error { return ErrRefused }

// negotiate returns the version that two nodes use, or an error that names the
// node that needs another release.
func negotiate(a Identity, ours versions, b Identity, theirs versions) (uint8, error) {
	v := ours.highestCommon(theirs)
	if v != 0 {
		return v, nil
	}

	about := func(i Identity, v versions) string {
		return fmt.Sprintf("node %s (%s, release %q) speaks %v of the peers' protocol", i.Node,
			printable(i.Name), printable(i.Release), v)
	}

	old := a
	young := b
	needed := theirs.lowest
	if ours.lowest > theirs.highest {
		old = b
		young = a
		needed = ours.lowest
	}
	return 0, &versionError{fmt.Sprintf("%s, and %s: %s needs a release that speaks version %d, as release %q does",
		about(a, ours), about(b, theirs), printable(old.Name), needed, printable(young.Release))}
}

// preamble is the first thing that each side of a connection sends.
type preamble struct {
	versions versions
	tag      byte   // the purpose of the connection, or the answer
	body     []byte // an Identity, or the reason of a refusal
}

func (pre preamble) write(w io.Writer) error {
	b := append(make([]byte, 0, preambleHead+len(pre.body)), magic...)
	b = append(b, pre.versions.lowest, pre.versions.highest, pre.tag)
	b = binary.BigEndian.AppendUint16(b, uint16(len(pre.body)))
	_, err := w.Write(append(b, pre.body...))
	return err
}

// readPreamble reads one preamble, and not a byte more.
func readPreamble(r io.Reader) (preamble, error) {
	var head [preambleHead]byte
	// The first byte is checked alone: a stranger may never send more.
	if _, err := io.ReadFull(r, head[:1]); err != nil {
		return preamble{}, err
	}

	switch head[0] {
	case magic[0]:
	case 0x15, 0x16: // TLS: alert, handshake
		return preamble{}, errTheirTLS
	default:
		return preamble{}, errPreamble
	}

	if _, err := io.ReadFull(r, head[1:]); err != nil {
		return preamble{}, err
	}

	rest := head[len(magic):]
	p := preamble{versions: versions{rest[0], rest[1]}, tag: rest[2]}
	n := int(binary.BigEndian.Uint16(rest[3:]))

	if string(head[:len(magic)]) != magic || p.versions.lowest == 0 || p.versions.lowest > p.versions.highest ||
		n > largestPreamble-preambleHead {
		return preamble{}, errPreamble
	}

	p.body = make([]byte, n)
	_, err := io.ReadFull(r, p.body)
	return p, err
}

// exchangePreambles is the dialling side's part of the handshake. It sends this
// node's identity, and returns the remote's and the version that both use.
func exchangePreambles(c io.ReadWriter, k connKind, self Identity, ours versions) (Identity, uint8, error) {
	_ = preamble{ours, byte(k), self.appendBinary(nil)}.write(c) // if this fails, the remote may have sent its reason

	p, err := readPreamble(c)
	if err != nil {
		return Identity{}, 0, fmt.Errorf("read preamble: %w", err)
	}

	switch p.tag {
	case answerWelcome:
		remote, err := parseIdentity(p.body)
		if err != nil {
			return Identity{}, 0, err
		}
		version, err := negotiate(self, ours, remote, p.versions)
		return remote, version, err
	case answerRefused:
		if ours.highestCommon(p.versions) == 0 {
			return Identity{}, 0, &versionError{"refused by the remote: " + printable(string(p.body))}
		}
		return Identity{}, 0, fmt.Errorf("%w by the remote: %s", ErrRefused, printable(string(p.body)))
	}

	return Identity{}, 0, errPreamble
}

// printable makes text from a stranger safe to log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
