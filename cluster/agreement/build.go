package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
)

// Level is a feature level: what all members of a cluster have to know before any of it may be written.
type Level uint32

// Newest is the newest level that this source knows. It grows by one with each release that adds a kind of entry, a format
// or a field, or that applies an entry differently; what is new then is written, and takes effect, only from that level on.
const Newest Level = 1

// Build is what one build can read, and how it signs what it writes.
type Build struct {
	Level   Level  // the newest that it knows
	Release string // for people: printable ASCII without spaces; at most MaxRelease bytes count
	Zones   string // the version of its time zones, as Release
	// Lacks is for tests: kinds of entries that this build can't read, by the name of their type.
	Lacks func(kind string) bool
}

// MaxRelease bounds the name of a release, in bytes.
const MaxRelease = 64

// This is the build that the program is made of, without a name.
var This = Build{Level: Newest}

// Unreadable says that an entry or a snapshot has something in it that this build doesn't know, or reads as something else. To go on without it would
// be to go another way than those who do know it.
type Unreadable struct {
	Needs   Level  // what it takes to read it; 0: that can't be read either
	Release string // that wrote it; "" if it did not say so
	Knows   Level  // this build
	Err     error  // wraps ErrEntry, ErrSnapshot or ErrDiffers
}

// Error says which release is needed.
func (u *Unreadable) Error() string {
	needs := "another release is needed"
	switch {
	case u.Needs > u.Knows && u.Release != "":
		needs = fmt.Sprintf("feature level %d is needed, and this release knows %d: run release %s or a later one", u.Needs, u.Knows, u.Release)
	case u.Needs > u.Knows:
		needs = fmt.Sprintf("feature level %d is needed, and this release knows %d: run a later one", u.Needs, u.Knows)
	case u.Release != "":
		needs = fmt.Sprintf("release %s wrote it: run that one or a later one", u.Release)
	}
	return fmt.Sprintf("%v; %s", u.Err, needs)
}

// Unwrap is Err.
func (u *Unreadable) Unwrap() error { return u.Err }

// unreadable wraps what is wrong, unless it says already what is needed.
func (b *Build) unreadable(needs Level, release string, err error) *Unreadable {
	return &Unreadable{Needs: needs, Release: release, Knows: b.Level, Err: err}
}

// signature is what entries and snapshots of all releases, also of those to come, begin with after their first bytes: the
// level that it takes to read the rest, and the release that wrote it.
func (b *Build) signature(to []byte, needs Level) []byte {
	return wire.AppendText(binary.AppendUvarint(to, uint64(needs)), b.Release[:min(len(b.Release), MaxRelease)])
}

var errSignature = errors.New("it does not say who wrote it")

// decodeSignature reads what signature wrote.
func decodeSignature(d *wire.Decoder) (needs Level, release string, err error) {
	needs, release = Level(d.UpTo(1<<31)), d.Text(MaxRelease)
	if d.Failed() || needs == 0 || strings.ContainsFunc(release, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return 0, "", errSignature
	}
	return needs, release, nil
}
