package algorithms

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

//go:generate go run mkzones.go

// ZonesVersion is the version of the time zone database embedded in this package.
const ZonesVersion = "2025c"

// ErrZone means that there is no time zone of that name.
var ErrZone = errors.New("not the name of a time zone such as UTC or Europe/Berlin")

//go:embed zones.zip
var zonesFile []byte

// knownZone is a time zone of the database with one calendar per unit.
// Calendars are shared because each caches its last result.
type knownZone struct {
	load      func() error // sets the fields below, once
	location  *time.Location
	calendars [Year + 1]Calendar
}

// zoneIndex maps the names of the database's zones, about 600, to the zones.
var zoneIndex = sync.OnceValues(func() (map[string]*knownZone, error) {
	r, err := zip.NewReader(bytes.NewReader(zonesFile), int64(len(zonesFile)))
	if err != nil {
		return nil, fmt.Errorf("open the database of time zones: %w", err)
	}
	index := make(map[string]*knownZone, len(r.File))
	for _, f := range r.File {
		z := &knownZone{}
		z.load = sync.OnceValue(func() error { return z.loadFrom(f) })
		index[f.Name] = z
	}
	return index, nil
})

// Zone returns a time zone of the database embedded in this package. So all
// nodes of one build use the same data, whatever their hosts have installed;
// [time.LoadLocation] would prefer the host's data. The error wraps [ErrZone]
// if there is no such zone.
func Zone(name string) (*time.Location, error) {
	z, err := findZone([]byte(name))
	if err != nil {
		return nil, err
	}
	return z.location, nil
}

// CalendarOf returns the shared calendar of a unit in the named time zone. The
// error wraps [ErrZone] if there is no such zone.
func CalendarOf(unit CalendarUnit, name string) (*Calendar, error) {
	z, err := findZone([]byte(name))
	if err != nil {
		return nil, err
	}
	return &z.calendars[unit], nil
}

// findZone returns the zone with that name. It reads the zone's data at the
// first use, and does not allocate afterwards.
func findZone(name []byte) (*knownZone, error) {
	index, err := zoneIndex()
	if err != nil {
		return nil, err
	}
	z := index[string(name)]
	if z == nil {
		return nil, fmt.Errorf("%.80q is %w", name, ErrZone)
	}
	return z, z.load()
}

func (z *knownZone) loadFrom(f *zip.File) error {
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("open the time zone %s: %w", f.Name, err)
	}

	defer r.Close()

	data, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read the time zone %s: %w", f.Name, err)
	}
	z.location, err = time.LoadLocationFromTZData(f.Name, data)
	if err != nil {
		return fmt.Errorf("read the time zone %s: %w", f.Name, err)
	}

	if f.Name == "UTC" {
		z.location = time.UTC
	}

	for u := range z.calendars {
		z.calendars[u].unit = CalendarUnit(u)
		z.calendars[u].zone = z.location
	}

	return nil
}
