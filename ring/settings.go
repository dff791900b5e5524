package ring

import (
	"errors"
	"fmt"
)

// What this build can compute a table with.
const (
	hashName    = "xxh3-64"
	libraryName = "buraksezer/consistent v1.0.0"

	maxFactor = 1000
	maxLoad   = 10
)

// ErrSettings: this build can't compute a table with these settings.
var ErrSettings = errors.New("ring settings are not supported")

// Settings are all that a table depends on besides its members. Two nodes compute the same table only with the same
// settings.
type Settings struct {
	Partitions int     `json:"partitions"`
	Factor     int     `json:"factor"`  // places of a member on the ring
	Load       float64 `json:"load"`    // a member owns at most this times the mean
	Hash       string  `json:"hash"`    // of places, partitions and standbys
	Library    string  `json:"library"` // and its version
}

// DefaultSettings are the settings of a new ring.
func DefaultSettings() Settings {
	return Settings{Partitions: Partitions, Factor: 100, Load: 1.25, Hash: hashName, Library: libraryName}
}

// Supported returns nil if this build can compute a table with s, or an error that wraps [ErrSettings] and names the
// first setting that it can't.
func (s Settings) Supported() error {
	wrong := func(name string, have any) error { return fmt.Errorf("%w: %s is %v", ErrSettings, name, have) }
	switch {
	case s.Partitions != Partitions:
		return wrong("partitions", s.Partitions)
	case s.Factor < 1 || s.Factor > maxFactor:
		return wrong("factor", s.Factor)
	case !(s.Load >= 1 && s.Load <= maxLoad): // so that no number fails too
		return wrong("load", s.Load)
	case s.Hash != hashName:
		return wrong("hash", s.Hash)
	case s.Library != libraryName:
		return wrong("library", s.Library)
	}
	return nil
}
