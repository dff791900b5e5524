package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/wire"
)

// Metadata is the member's description that memberlist sends with its name and
// address, at most 512 bytes:
//
//	format 1 | flags | version | boot 8 | peer port 2 | expect 2 | cluster 16 | name | region | zone | extensions
//
// Before each text comes a byte with its length. An extension is a tag, a
// length byte and that many bytes. Unknown extensions are skipped: during a
// rolling upgrade, a later release may send more, and this one must not refuse
// it. Extensions that are zero or empty are omitted.
const (
	metadataFormat = 1

	maxMetadata = 512 // memberlist's limit
	maxName     = 253 // the longest host name
	maxRegion   = 100
	maxZone     = 100

	flagEmpty   = 1 << 0
	flagLeaving = 1 << 1

	extensionMembers = 1 // 2 bytes
	extensionPrimary = 2 // a region
	extensionLevel   = 3 // 4 bytes
)

// ErrMetadata means that a member's description is malformed or too long.
var ErrMetadata = errors.New("bad metadata")

// appendMetadata appends m's metadata to b. Its error names a field that is out
// of range or too long.
func appendMetadata(b []byte, m Member) ([]byte, error) {
	if m.PeerPort < 0 || m.PeerPort > 65535 {
		return nil, fmt.Errorf("%w: peer port %d is not between 0 and 65535", ErrMetadata, m.PeerPort)
	}
	if m.BootstrapExpect < 0 || m.BootstrapExpect > 65535 {
		return nil, fmt.Errorf("%w: %d expected members are not between 0 and 65535", ErrMetadata, m.BootstrapExpect)
	}
	if m.RegionSize < 0 || m.RegionSize > 65535 {
		return nil, fmt.Errorf("%w: %d members of the region are not between 0 and 65535", ErrMetadata, m.RegionSize)
	}
	if err := checkTexts(m); err != nil {
		return nil, err
	}

	var flags byte
	if m.RaftEmpty {
		flags |= flagEmpty
	}
	if m.State == Left {
		flags |= flagLeaving
	}

	b = append(b, metadataFormat, flags, m.SettingsVersion)
	b = binary.BigEndian.AppendUint64(b, m.Boot)
	b = binary.BigEndian.AppendUint16(b, uint16(m.PeerPort))
	b = binary.BigEndian.AppendUint16(b, uint16(m.BootstrapExpect))
	b = append(b, m.Cluster[:]...)
	for _, s := range []string{m.Name, m.Region, m.Zone} {
		b = wire.AppendShortText(b, s)
	}

	if m.RegionSize > 0 {
		b = binary.BigEndian.AppendUint16(append(b, extensionMembers, 2), uint16(m.RegionSize))
	}
	if m.Primary != "" {
		b = wire.AppendShortText(append(b, extensionPrimary), m.Primary)
	}
	if m.Level > 0 {
		b = binary.BigEndian.AppendUint32(append(b, extensionLevel, 4), m.Level)
	}

	if len(b) > maxMetadata {
		return nil, fmt.Errorf("%w: %d bytes, more than %d: names are too long", ErrMetadata, len(b), maxMetadata)
	}
	return b, nil
}

// parseMetadata returns the member that the metadata describes. Its ID, address
// and gossip port come from elsewhere.
func parseMetadata(b []byte) (Member, error) {
	if len(b) > maxMetadata {
		return Member{}, fmt.Errorf("%w: %d bytes", ErrMetadata, len(b))
	}

	d := wire.NewDecoder(b)
	format, flags := d.Byte(), d.Byte()
	if format != metadataFormat || flags&^(flagEmpty|flagLeaving) != 0 {
		d.Failf("unknown format %d, or unknown flags %#x", format, flags)
	}

	m := Member{
		SettingsVersion: d.Byte(), Boot: d.BigUint64(), PeerPort: int(d.BigUint16()),
		BootstrapExpect: int(d.BigUint16()), RaftEmpty: flags&flagEmpty != 0,
	}
	if flags&flagLeaving != 0 {
		m.State = Left
	}

	d.Fill(m.Cluster[:])
	m.Name, m.Region, m.Zone = d.ShortText(maxName), d.ShortText(maxRegion), d.ShortText(maxZone)

	for d.More() {
		tag := d.Byte()
		value := wire.NewDecoder(d.Bytes(int(d.Byte())))
		switch tag {
		case extensionMembers:
			m.RegionSize = int(value.BigUint16())
			if value.Done("members of the region") != nil {
				d.Failf("the members of the region do not take 2 bytes")
			}
		case extensionPrimary:
			m.Primary = string(value.Rest())
		case extensionLevel:
			m.Level = value.BigUint32()
			if value.Done("feature level") != nil {
				d.Failf("the feature level does not take 4 bytes")
			}
		}
	}

	err := d.Done("metadata")
	if err == nil {
		err = checkTexts(m)
	}
	if err != nil {
		return Member{}, fmt.Errorf("%w: %w", ErrMetadata, err)
	}
	return m, nil
}

// checkTexts returns an error if a text is empty or too long, or garbles logs.
func checkTexts(m Member) error {
	if m.Name == "" {
		return fmt.Errorf("%w: the name is empty", ErrMetadata)
	}

	for _, t := range []struct {
		what, text string
		max        int
	}{{"name", m.Name, maxName}, {"region", m.Region, maxRegion}, {"zone", m.Zone,
		maxZone}, {"primary region", m.Primary, maxRegion}} {
		if len(t.text) > t.max {
			return fmt.Errorf("%w: the %s has %d bytes, more than %d", ErrMetadata, t.what, len(t.text), t.max)
		}

		if !utf8.ValidString(t.text) {
			return fmt.Errorf("%w: the %s is not UTF-8", ErrMetadata, t.what)
		}

		for _, r := range t.text {
			if !unicode.IsPrint(r) {
				return fmt.Errorf("%w: the %s has the unprintable character %U", ErrMetadata, t.what, r)
			}
		}
	}
	return nil
}
