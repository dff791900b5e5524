package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/rlnode/rlnode/internal/wire"
)

// Level is a feature level. All members of a cluster must know a level before
// any of them writes data that needs it.
type Level uint32

// Newest is the newest level that this source code knows. It rises by one with
// each release that adds a kind of entry, a format or a field, or that applies
// an entry differently. Such a change takes effect only once the agreed level
// includes it.
const Newest Level = 2

// Build says which data a build of the program can read, and which release it
// names in the data that it writes.
type Build struct {
	Level   Level  // the newest level that it knows
	Release string // for people: printable ASCII without spaces; truncated to MaxRelease bytes when written
	Zones   string // the version of its time zone data, in the same format
	// Lacks is for tests. It reports whether this build can't read a kind of entry,
	// given its type name.
	Lacks func(kind string) bool
}

// MaxRelease bounds the name of a release, and the version of time zone data, in bytes.
const MaxRelease = 64

// ThisBuild is the build of this program, without a release name.
var ThisBuild = Build{Level: Newest}

// Unreadable is the error for an entry or a snapshot with content that this
// build doesn't know, or reads differently than its writer. A node that ignored
// the content would diverge from the nodes that know it.
type Unreadable struct {
	Needs   Level  // the level needed to read it; 0 if even that is unreadable
	Release string // the release that wrote it; "" if unknown
	Knows   Level  // the level of this build
	Err     error  // wraps ErrEntry, ErrSnapshot or ErrDiffers
}

// Error returns the cause and the release needed.
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

// unreadable wraps err with the level and release needed to read the data.
func (b *Build) unreadable(needs Level, release string, err error) *Unreadable {
	return &Unreadable{Needs: needs, Release: release, Knows: b.Level, Err: err}
}

// appendOrigin appends the origin of the data that follows: the level needed to
// read it, and this build's release. In all releases, past and future, entries
// and snapshots have their origin after their first bytes, in this form.
func (b *Build) appendOrigin(to []byte, needs Level) []byte {
	return wire.AppendText(binary.AppendUvarint(to, uint64(needs)), b.Release[:min(len(b.Release), MaxRelease)])
}

var errOrigin = errors.New("invalid origin (level and release)")

// decodeOrigin is the inverse of appendOrigin.
func decodeOrigin(d *wire.Decoder) (needs Level, release string, err error) {
	needs, release = Level(d.UpTo(1<<31)), d.Text(MaxRelease)
	if d.Failed() || needs == 0 || strings.ContainsFunc(release, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return 0, "", errOrigin
	}
	return needs, release, nil
}
