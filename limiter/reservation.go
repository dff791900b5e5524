package limiter

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// Bounds of reservations.
const (
	// MaxReserved is how many limits a reservation may be about.
	MaxReserved = 256
	// MaxReservationTime is how long a reservation may wait to be settled.
	MaxReservationTime = time.Hour
	// keptSettling is how long after a reservation's time a settling is remembered.
	keptSettling = time.Minute

	reservationForm = 1  // the first byte of an id
	nonceBytes      = 12 // of an id, so that no two are alike
	signatureBytes  = 16
	maxUnitBytes    = 1024
	// maxNames bounds the names of subjects in an id, in bytes together. Those of the rest are left out: what their
	// settling changes is not billed.
	maxNames     = 16 << 10
	maxKeyValues = 32
)

// Errors of reservations.
var (
	// ErrUnknownReservation: the string is no reservation that can still be settled.
	ErrUnknownReservation = errors.New("unknown reservation")
	// ErrReservation: the check is about too many limits for one reservation.
	ErrReservation = fmt.Errorf("a reservation is about %d limits at most", MaxReserved)
)

// reservation is what a check took, from what, and when: enough for any node to settle it. Who made it is told by its
// signature; it is nowhere kept.
type reservation struct {
	nonce    [nonceBytes]byte
	made     int64 // Unix nanoseconds, by the clock that aligns windows
	until    int64
	units    []string
	subjects []reserved // the first one's partition is its home
	limits   []algorithms.Limit
}

// reserved is what was taken of one subject.
type reserved struct {
	hi      uint64
	lineage uint64 // of its partition's counters when it was taken; 0: nothing of it can be given back
	process uint64 // of the decider, of whose steady clock this is a reading
	steady  int64
	costs   []reservedCost

	// For bills; without a rule it is not billed.
	lo   uint64 // of the subject's hash
	rule string
	key  []string
}

// reservedCost is what was taken of one limit.
type reservedCost struct {
	lo    uint64
	limit *algorithms.Limit
	unit  int // in reservation.units
	cost  int64
	when  int64 // windows: their number; the others: Decision.ResetAfter
}

// partition is where its settling is recorded.
func (r *reservation) home() *reserved { return &r.subjects[0] }

// id packs and signs r.
func (r *reservation) id(key []byte) string {
	b := append([]byte{reservationForm}, r.nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.made))
	b = binary.AppendUvarint(b, uint64(r.until-r.made))
	b = wire.AppendTexts(b, r.units)
	b = binary.AppendUvarint(b, uint64(len(r.subjects)))
	for i := range r.subjects {
		b = r.subjects[i].append(b)
	}
	return base64.RawURLEncoding.EncodeToString(append(b, signature(key, b)...))
}

func (s *reserved) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.hi)
	b = binary.LittleEndian.AppendUint64(b, s.lineage)
	b = binary.LittleEndian.AppendUint64(b, s.process)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.steady))
	b = append(b, byte(len(s.costs)))
	for i := range s.costs {
		c := &s.costs[i]
		b = binary.LittleEndian.AppendUint64(b, c.lo)
		b = c.limit.Append(b, 0)
		b = binary.AppendUvarint(b, uint64(c.unit))
		b = binary.AppendUvarint(b, uint64(c.cost))
		b = binary.AppendVarint(b, c.when)
	}
	if b = wire.AppendText(b, s.rule); s.rule == "" {
		return b
	}
	return wire.AppendTexts(binary.LittleEndian.AppendUint64(b, s.lo), s.key)
}

func signature(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)[:signatureBytes]
}

// parseReservation reads an id that was signed with key. The error is ErrUnknownReservation.
func parseReservation(id string, key []byte) (*reservation, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(raw) <= signatureBytes {
		return nil, ErrUnknownReservation
	}
	b := raw[:len(raw)-signatureBytes]
	if !hmac.Equal(raw[len(b):], signature(key, b)) {
		return nil, ErrUnknownReservation
	}
	d := wire.NewDecoder(b)
	r := &reservation{}
	if d.Byte() != reservationForm {
		d.Fail()
	}
	d.Fill(r.nonce[:])
	r.made = int64(d.Uint64())
	r.until = r.made + d.UpTo(int64(MaxReservationTime))
	r.units = d.Texts(MaxReserved, maxUnitBytes)
	n := int(d.UpTo(MaxReserved))
	if n < 1 {
		d.Fail()
	}
	r.limits = make([]algorithms.Limit, 0, MaxReserved)
	for i := 0; i < n && !d.Failed(); i++ {
		r.subjects = append(r.subjects, r.readSubject(d))
	}
	if d.Done("reservation") != nil {
		return nil, ErrUnknownReservation
	}
	return r, nil
}

func (r *reservation) readSubject(d *wire.Decoder) reserved {
	s := reserved{hi: d.Uint64(), lineage: d.Uint64(), process: d.Uint64(), steady: int64(d.Uint64())}
	n := int(d.Byte())
	for i := 0; i < n && !d.Failed(); i++ {
		c := reservedCost{lo: d.Uint64()}
		var limit algorithms.Limit
		limit.Decode(d, 0)
		c.unit, c.cost, c.when = int(d.UpTo(MaxReserved)), d.UpTo(algorithms.MaxAmount), d.Varint()
		if c.unit >= len(r.units) || len(r.limits) == cap(r.limits) {
			d.Fail()
			break
		}
		r.limits = append(r.limits, limit) // has room: no limit moves
		c.limit = &r.limits[len(r.limits)-1]
		s.costs = append(s.costs, c)
	}
	if s.rule = d.Text(maxUnitBytes); s.rule != "" {
		// Not nil, though the rule may have no key: that would be all others.
		s.lo, s.key = d.Uint64(), append([]string{}, d.Texts(maxKeyValues, maxUnitBytes)...)
	}
	return s
}

// note is the place at which the settling of a unit is noted.
func (r *reservation) note(unit int) counters.Key {
	h := sha256.Sum256(binary.AppendUvarint(r.nonce[:], uint64(unit)))
	return counters.Key{Hi: r.home().hi, Lo: binary.LittleEndian.Uint64(h[:])}
}

// signingKey is what ids are signed with: the cluster's, or as long as that is not known this process's own, which
// no other node can read.
func (l *Limiter) signingKey() (key []byte, known bool) {
	if l.member == nil || l.member.Secret == nil {
		return l.ownKey[:], true
	}
	secret := l.member.Secret()
	if len(secret) == 0 {
		return l.ownKey[:], false
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("reservation"))
	return h.Sum(nil), true
}

func newNonce() (n [nonceBytes]byte) {
	_, _ = rand.Read(n[:])
	return n
}
