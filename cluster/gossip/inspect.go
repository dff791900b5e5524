package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"net"
	"net/netip"

	"github.com/hashicorp/memberlist"
)

// memberlist 0.6 trusts its input: a compressed message that unpacks to
// nothing, a list without versions or a negative length ends the process, and a
// small message may take hundreds of MB. So an inspector reads and decrypts
// each message first. It lets through only the kinds that nodes send to each
// other, whole, well-formed and within bounds. memberlist gets exactly the
// inspected bytes, and decrypts nothing itself.

// refusal is the reason why memberlist does not get a message.
type refusal string

func (r refusal) Error() string { return "refused: " + string(r) }

const (
	errOtherPool     = refusal("it belongs to another pool")
	errNotEncrypted  = refusal("it is not encrypted")
	errNoMatchingKey = refusal("it is encrypted with none of this node's keys")
	errCompressed    = refusal("it is compressed")
	errWrongKind     = refusal("no node sends this kind of message this way")
	errMalformed     = refusal("it is malformed")
	errCutShort      = refusal("it is cut short")
	errTooSlow       = refusal("it takes too long")
	errChecksum      = refusal("its checksum is wrong")
	errTooLarge      = refusal("it is too large")
	errNoRoom        = refusal("too many messages are being received at once")
	errDestination   = refusal("it asks for messages to an address without a member")
)

// memberlist's message types.
const (
	pingMsg         = 0
	indirectPingMsg = 1
	ackMsg          = 2
	suspectMsg      = 3
	aliveMsg        = 4
	deadMsg         = 5
	pushPullMsg     = 6
	compoundMsg     = 7
	userMsg         = 8
	compressMsg     = 9
	encryptMsg      = 10
	nackMsg         = 11
	crcMsg          = 12
	errorMsg        = 13
	labelMsg        = 244

	crcHeader     = 1 + 4
	encryptHeader = 1 + 4
	cipherVersion = 1 // of memberlist's encryption: AES-GCM without padding
	nonceSize     = 12
	tagSize       = 16
)

const (
	// maxPacket is more than memberlist sends in a packet: 1,400 bytes, its
	// overheads, and a margin for later versions.
	maxPacket = 2048
	// maxStream bounds the message on a stream, in bytes: 10,000 members with
	// metadata of 512 bytes fit.
	maxStream  = 8 << 20
	maxHeaders = 64 // bytes of headers before it
	// maxStates bounds the members in a list: memberlist keeps dead members for a while.
	maxStates = 2 * maxMembers
	maxText   = 1024 // bytes of a remote error
	maxID     = 64   // bytes of a node's name, which is its ID
)

// inspector reads messages before memberlist does.
type inspector struct {
	label string
	// keys returns the keys of incoming messages. nil: nothing is encrypted.
	keys func() [][]byte
	// isMemberAddress reports whether a member has an address.
	isMemberAddress func(netip.AddrPort) bool
}

// labelHeader returns the bytes that precede each packet and each accepted stream.
func (in *inspector) labelHeader() []byte {
	return append([]byte{labelMsg, byte(len(in.label))}, in.label...)
}

// inspectPacket inspects a packet and returns the bytes for memberlist: a copy,
// because packets arrive in much larger buffers.
func (in *inspector) inspectPacket(b []byte, from net.Addr) ([]byte, error) {
	if len(b) > maxPacket {
		return nil, errTooLarge
	}

	b, ours := bytes.CutPrefix(b, in.labelHeader())
	if !ours {
		return nil, errOtherPool
	}

	if in.keys != nil {
		var err error

		b, err = in.decrypt(b, []byte(in.label))
		if err != nil {
			return nil, err
		}
	}

	if len(b) >= crcHeader && b[0] == crcMsg {
		if binary.BigEndian.Uint32(b[1:]) != crc32.ChecksumIEEE(b[crcHeader:]) {
			return nil, errChecksum
		}
		b = b[crcHeader:]
	}

	if err := in.inspectMessage(b, from, outermost); err != nil {
		return nil, err
	}

	// A checksum in front keeps memberlist from taking the message for an encrypted
	// one, which it would try to decrypt.
	checked := append(make([]byte, 0, crcHeader+len(b)), crcMsg)
	return append(binary.BigEndian.AppendUint32(checked, crc32.ChecksumIEEE(b)), b...), nil
}

// decrypt returns the plaintext of a message. It does not overwrite b, because
// it may have to try every key.
func (in *inspector) decrypt(b, additional []byte) ([]byte, error) {
	if len(b) < 1+nonceSize+tagSize || b[0] != cipherVersion {
		return nil, errNotEncrypted
	}

	for _, key := range in.keys() {
		block, err := aes.NewCipher(key)
		if err != nil {
			continue
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			continue
		}

		plain, err := gcm.Open(nil, b[1:1+nonceSize], b[1+nonceSize:], additional)
		if err == nil {
			return plain, nil
		}
	}
	return nil, errNoMatchingKey
}

// nesting is the position of a message in a packet.
type nesting uint8

const (
	outermost  nesting = iota
	inCompound         // memberlist never nests compounds
)

// inspectMessage inspects one message of a packet.
func (in *inspector) inspectMessage(b []byte, from net.Addr, at nesting) error {
	if len(b) == 0 {
		return errCutShort
	}

	d := &decoder{buf: b, pos: 1}
	var err error
	switch b[0] {
	case pingMsg, indirectPingMsg:
		err = in.inspectPing(d, b[0], from)
	case ackMsg:
		err = d.decodeMap(ackFields)
	case nackMsg:
		err = d.decodeMap(nackFields)
	case suspectMsg, deadMsg:
		err = d.decodeMap(suspectFields)
	case aliveMsg:
		err = d.decodeMap(aliveFields)
	case userMsg: // News checks the rest
		return nil
	case compoundMsg:
		if at == inCompound {
			return errWrongKind
		}
		return in.inspectCompound(b[1:], from)
	case compressMsg:
		return errCompressed
	default:
		return errWrongKind
	}

	if err == nil && d.pos != len(b) {
		err = errMalformed
	}
	return err
}

// inspectCompound inspects several messages in one: a byte with their number,
// two bytes with the length of each, then the messages.
func (in *inspector) inspectCompound(b []byte, from net.Addr) error {
	if len(b) < 1 || len(b) < 1+2*int(b[0]) {
		return errCutShort
	}

	headEnd := 1 + 2*int(b[0])
	lengths, rest := b[1:headEnd], b[headEnd:]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(rest) {
			return errCutShort
		}
		if err := in.inspectMessage(rest[:n], from, inCompound); err != nil {
			return err
		}
		rest = rest[n:]
	}

	if len(rest) > 0 {
		return errMalformed
	}
	return nil
}

// inspectPing inspects a ping, which makes this node send messages itself. A
// ping may ask for messages only to its sender or to members.
func (in *inspector) inspectPing(d *decoder, kind byte, from net.Addr) error {
	var source, sourcePort, target, targetPort value
	fields := pingFields(&source, &sourcePort)
	if kind == indirectPingMsg {
		fields = append(fields, field{name: "Target", kind: address, dest: &target},
			field{name: "Port", kind: number, max: math.MaxUint16,
				dest: &targetPort}, field{name: "Nack", kind: boolean})
	}

	if err := d.decodeMap(fields); err != nil {
		return err
	}
	if kind == indirectPingMsg && !in.isMemberAddress(addrPort(target, targetPort)) {
		return errDestination
	}

	if source.bytes == nil || sourcePort.number == 0 {
		return nil // the answer goes back to the sender's address
	}

	back := addrPort(source, sourcePort)
	if u, ok := from.(*net.UDPAddr); ok {
		origin := u.AddrPort()
		if back == netip.AddrPortFrom(origin.Addr().Unmap().WithZone(""), origin.Port()) {
			return nil
		}
	}

	if !in.isMemberAddress(back) {
		return errDestination
	}
	return nil
}

func addrPort(ip, port value) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip.bytes) // the decoder has checked that it has 4 or 16 bytes
	return netip.AddrPortFrom(a.Unmap(), uint16(port.number))
}

// inspectStream reads and inspects the message of a stream, and returns the
// bytes for memberlist, without the headers before them. It calls grow before
// it uses more memory; see decoder.
func (in *inspector) inspectStream(r io.Reader, dir direction, grow func(int) error) ([]byte, error) {
	d := &decoder{in: r, reserve: grow}
	if dir == accepted {
		header := in.labelHeader()
		have, err := d.take(len(header))
		if err != nil {
			return nil, err
		}
		if string(have) != string(header) {
			return nil, errOtherPool
		}
	}

	start := d.pos
	if in.keys != nil {
		plain, err := in.decryptStream(d)
		if err != nil {
			return nil, err
		}
		d = &decoder{buf: plain}
		start = 0
	}

	kind, err := d.byte()
	if err != nil {
		return nil, err
	}
	if err := in.inspectStreamBody(d, kind, dir); err != nil {
		return nil, err
	}

	if in.keys != nil && d.pos != len(d.buf) {
		return nil, errMalformed
	}
	return d.buf[start:d.pos], nil
}

// decryptStream decrypts the message of a stream.
func (in *inspector) decryptStream(d *decoder) ([]byte, error) {
	head, err := d.take(encryptHeader)
	if err != nil {
		return nil, err
	}
	if head[0] != encryptMsg {
		return nil, errNotEncrypted
	}

	size := binary.BigEndian.Uint32(head[1:])
	if size > maxStream {
		return nil, errTooLarge
	}

	additional := append(append([]byte(nil), head...), in.label...)
	sealed, err := d.take(int(size))
	if err != nil {
		return nil, err
	}

	// The plaintext takes as much memory again.
	if err := d.reserve(cap(d.buf) + len(sealed)); err != nil {
		return nil, err
	}
	return in.decrypt(sealed, additional)
}

// inspectStreamBody inspects the rest of a stream's message, after the byte with its kind.
func (in *inspector) inspectStreamBody(d *decoder, kind byte, dir direction) error {
	switch {
	case kind == pushPullMsg:
		return inspectPushPull(d)
	case kind == pingMsg && dir == accepted:
		return d.decodeMap(pingFields(nil, nil)) // the answer goes back on the stream
	case kind == ackMsg && dir == dialed:
		return d.decodeMap(ackFields)
	case kind == errorMsg && dir == dialed:
		return d.decodeMap(errorFields)
	case kind == compressMsg:
		return errCompressed
	case kind == encryptMsg:
		return errNoMatchingKey
	}

	return errWrongKind
}

// inspectPushPull inspects a list of members and the state that comes with it.
func inspectPushPull(d *decoder) error {
	var nodes, length value
	err := d.decodeMap([]field{
		{name: "Nodes", kind: number, max: maxStates, dest: &nodes},
		{name: "UserStateLen", kind: number, max: maxStream, dest: &length},
		{name: "Join", kind: boolean},
	})
	if err != nil {
		return err
	}

	for range nodes.number {
		if err := d.decodeMap(stateFields); err != nil {
			return err
		}
	}

	_, err = d.take(int(length.number))
	return err
}

// speaksOurVersions reports whether a node supports the protocol versions of
// this node, and uses them. While memberlist knows a node that does not, it
// stops all exchanges of lists.
func speaksOurVersions(v []byte) bool {
	const protocol, delegate = memberlist.ProtocolVersion2Compatible, 0
	return len(v) == 6 && v[0] >= 1 && v[0] <= protocol && v[1] >= protocol && v[2] == protocol &&
		v[3] == delegate && v[5] == delegate
}

var (
	ackFields = []field{{name: "SeqNo", kind: number, max: math.MaxUint32}, {name: "Payload", kind: text, max: maxText}}

	nackFields = []field{{name: "SeqNo", kind: number, max: math.MaxUint32}}

	errorFields = []field{{name: "Error", kind: text, max: maxText}}

	suspectFields = []field{
		{name: "Incarnation", kind: number, max: math.MaxUint32},
		{name: "Node", kind: text, max: maxID},
		{name: "From", kind: text, max: maxID},
	}

	aliveFields = []field{
		{name: "Incarnation", kind: number, max: math.MaxUint32},
		{name: "Node", kind: text, max: maxID},
		{name: "Addr", kind: address},
		{name: "Port", kind: number, max: math.MaxUint16},
		{name: "Meta", kind: text, max: maxMetadata},
		{name: "Vsn", kind: version},
	}

	stateFields = []field{
		{name: "Name", kind: text, max: maxID},
		{name: "Addr", kind: address},
		{name: "Port", kind: number, max: math.MaxUint16},
		{name: "Meta", kind: text, max: maxMetadata},
		{name: "Incarnation", kind: number, max: math.MaxUint32},
		{name: "State", kind: number, max: uint64(memberlist.StateLeft)},
		{name: "Vsn", kind: version},
	}
)

// pingFields returns the fields of a ping; an indirect ping has more.
func pingFields(source, sourcePort *value) []field {
	return []field{
		{name: "SeqNo", kind: number, max: math.MaxUint32},
		{name: "Node", kind: text, max: maxID},
		{name: "SourceAddr", kind: address, optional: true, dest: source},
		{name: "SourcePort", kind: number, max: math.MaxUint16, optional: true, dest: sourcePort},
		{name: "SourceNode", kind: text, max: maxID, optional: true},
	}
}
