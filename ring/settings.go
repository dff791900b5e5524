package ring

import (
	"errors"
	"fmt"
)

// The values of Settings that this build supports.
const (
	hashName    = "xxh3-64"
	libraryName = "buraksezer/consistent v1.0.0"

	maxFactor = 1000
	maxLoad   = 10
)

// ErrSettings means that this build can't compute a table with these settings.
var ErrSettings = errors.New("ring settings are not supported")

// Settings are everything that a table depends on besides its members. Two
// nodes compute the same table only with the same settings.
type Settings struct {
	Partitions int     `json:"partitions"`
	Factor     int     `json:"factor"`  // points of each member on the ring
	Load       float64 `json:"load"`    // a member owns at most this multiple of the mean
	Hash       string  `json:"hash"`    // for points, partitions and standbys
	Library    string  `json:"library"` // including its version
}

// DefaultSettings returns the settings of a new ring.
func DefaultSettings() Settings {
	return Settings{Partitions: Partitions, Factor: 100, Load: 1.25, Hash: hashName, Library: libraryName}
}

// CheckSupported returns nil if this build can compute a table with s.
// Otherwise the error wraps [ErrSettings] and names the first setting it can't
// use.
func (s Settings) CheckSupported() error {
	unsupported := func(name string, have any) error { return fmt.Errorf("%w: %s is %v", ErrSettings, name, have) }
	switch {
	case s.Partitions != Partitions:
		return unsupported("partitions", s.Partitions)
	case s.Factor < 1 || s.Factor > maxFactor:
		return unsupported("factor", s.Factor)
	case !(s.Load >= 1 && s.Load <= maxLoad): // negated so that NaN fails too
		return unsupported("load", s.Load)
	case s.Hash != hashName:
		return unsupported("hash", s.Hash)
	case s.Library != libraryName:
		return unsupported("library", s.Library)
	}

	return nil
}
