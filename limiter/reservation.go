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

	reservationForm = 2  // the first byte of an id
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
	subjects []reserved // the first one's partition is its home, where its settling is recorded
}

// reserved is what was taken of one subject.
type reserved struct {
	debit
	units []int // by op: in reservation.units

	// For bills; without a rule it is not billed.
	lo   uint64 // of the subject's hash
	rule string
	key  []string
}

func (r *reservation) home() *reserved { return &r.subjects[0] }

// Code is for wire.Encode.
func (r *reservation) Code(c *wire.Coder) {
	life := r.until - r.made
	c.Raw(r.nonce[:])
	wire.Fixed(c, &r.made)
	wire.Number(c, &life, int64(MaxReservationTime))
	r.until = r.made + life
	c.Texts(&r.units, MaxReserved, maxUnitBytes)
	wire.List(c, &r.subjects, MaxReserved, 4*8+2+1+1, func(s *reserved) {
		s.code(c)
		wire.List(c, &s.units, maxSubjectOps, 1, func(n *int) { wire.Number(c, n, int64(len(r.units)-1)) })
		if c.Text(&s.rule, maxUnitBytes); s.rule != "" {
			wire.Fixed(c, &s.lo)
			if c.Texts(&s.key, maxKeyValues, maxUnitBytes); s.key == nil {
				s.key = []string{} // the rule may have no key: nil would be all others
			}
		}
		c.Require(len(s.units) == len(s.ops))
	})
	c.Require(len(r.subjects) > 0)
}

// id packs and signs r.
func (r *reservation) id(key []byte) string {
	b := wire.Encode([]byte{reservationForm}, r)
	return base64.RawURLEncoding.EncodeToString(append(b, signature(key, b)...))
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
	r := &reservation{}
	if b[0] != reservationForm || wire.Decode(b[1:], r, "reservation") != nil {
		return nil, ErrUnknownReservation
	}
	return r, nil
}

// note is the place at which the settling of a unit is noted.
func (r *reservation) note(unit int) counters.Key {
	h := sha256.Sum256(binary.AppendUvarint(r.nonce[:], uint64(unit)))
	return counters.Key{Hi: r.home().hi, Lo: binary.LittleEndian.Uint64(h[:])}
}

// signingKey is what ids are signed with: the cluster's, or as long as that is not known this process's own, which
// no other node can read.
func (x *reservations) signingKey() (key []byte, known bool) {
	if x.l.member == nil || x.l.member.Secret == nil {
		return x.ownKey[:], true
	}
	secret := x.l.member.Secret()
	if len(secret) == 0 {
		return x.ownKey[:], false
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("reservation"))
	return h.Sum(nil), true
}

func newNonce() (n [nonceBytes]byte) {
	_, _ = rand.Read(n[:])
	return n
}
