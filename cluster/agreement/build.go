package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
)

// Level is a feature level: all members of a cluster must know a level before anything that needs it may be written.
type Level uint32

// Newest is the newest level that this source knows. It rises by one with each release that adds a kind of entry, a format
// or a field, or that applies an entry differently. Such a change is written, and takes effect, only from that level on.
const Newest Level = 2

// Build describes what one build can read, and how it signs what it writes.
type Build struct {
	Level   Level  // the newest it knows
	Release string // for people: printable ASCII without spaces; truncated to MaxRelease bytes when written
	Zones   string // the version of its time zones; as Release
	// Lacks is for tests: it reports the kinds of entries, by type name, that this build can't read.
	Lacks func(kind string) bool
}

// MaxRelease bounds the name of a release, in bytes.
const MaxRelease = 64

// ThisBuild is the build of this program, without a release name.
var ThisBuild = Build{Level: Newest}

// Unreadable reports that an entry or snapshot contains something that this build doesn't know or reads differently.
// Carrying on without it would make this node's state diverge from that of nodes that know it.
type Unreadable struct {
	Needs   Level  // the level needed to read it; 0 if that can't be read either
	Release string // the release that wrote it; "" if unknown
	Knows   Level  // the level of this build
	Err     error  // wraps ErrEntry, ErrSnapshot or ErrDiffers
}

// Error says what is wrong and which release is needed.
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

// Unwrap returns Err.
func (u *Unreadable) Unwrap() error { return u.Err }

// unreadable wraps err with what is needed to read the data.
func (b *Build) unreadable(needs Level, release string, err error) *Unreadable {
	return &Unreadable{Needs: needs, Release: release, Knows: b.Level, Err: err}
}

// signature appends the level needed to read the rest, and the release that wrote it. Entries and snapshots of all
// releases, past and future, have it after their first bytes.
func (b *Build) signature(to []byte, needs Level) []byte {
	return wire.AppendText(binary.AppendUvarint(to, uint64(needs)), b.Release[:min(len(b.Release), MaxRelease)])
}

var errSignature = errors.New("it does not say who wrote it")

// decodeSignature is the inverse of signature.
func decodeSignature(d *wire.Decoder) (needs Level, release string, err error) {
	needs, release = Level(d.UpTo(1<<31)), d.Text(MaxRelease)
	if d.Failed() || needs == 0 || strings.ContainsFunc(release, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return 0, "", errSignature
	}
	return needs, release, nil
}
