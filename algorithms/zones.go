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

// ZonesVersion is the version of the time zone database that is part of this package.
const ZonesVersion = "2025c"

// ErrZone: no time zone has that name.
var ErrZone = errors.New("not the name of a time zone such as UTC or Europe/Berlin")

//go:embed zones.zip
var zonesFile []byte

// zoneIndex finds the zones of the database by name; there are about 600.
var zoneIndex = sync.OnceValues(func() (map[string]*zip.File, error) {
	r, err := zip.NewReader(bytes.NewReader(zonesFile), int64(len(zonesFile)))
	if err != nil {
		return nil, fmt.Errorf("open the database of time zones: %w", err)
	}
	index := make(map[string]*zip.File, len(r.File))
	for _, f := range r.File {
		index[f.Name] = f
	}
	return index, nil
})

// knownZone is a time zone of the database with its calendars: one of each unit, since a calendar remembers the window found last.
type knownZone struct {
	location  *time.Location
	calendars [Year + 1]Calendar
}

// knownZones are those that were asked for; no more than the database has.
var knownZones struct {
	sync.RWMutex // guards byName
	byName       map[string]*knownZone
}

// Zone returns a time zone of the database that is part of this package: every node of a build has the same one, whatever
// its host knows. [time.LoadLocation] would ask the host first. The error wraps [ErrZone].
func Zone(name string) (*time.Location, error) {
	z, err := zoneOf([]byte(name))
	if err != nil {
		return nil, err
	}
	return z.location, nil
}

// CalendarOf returns the one calendar of a unit in the time zone of that name. The error wraps [ErrZone].
func CalendarOf(unit CalendarUnit, name string) (*Calendar, error) {
	z, err := zoneOf([]byte(name))
	if err != nil {
		return nil, err
	}
	return &z.calendars[unit], nil
}

// zoneOf looks a name up without allocating anything for one that was asked for before.
func zoneOf(name []byte) (*knownZone, error) {
	knownZones.RLock()
	z := knownZones.byName[string(name)]
	knownZones.RUnlock()
	if z != nil {
		return z, nil
	}
	location, err := readZone(string(name))
	if err != nil {
		return nil, err
	}
	knownZones.Lock()
	defer knownZones.Unlock()
	if z = knownZones.byName[string(name)]; z != nil {
		return z, nil
	}
	z = &knownZone{location: location}
	for u := range z.calendars {
		z.calendars[u].unit, z.calendars[u].zone = CalendarUnit(u), location
	}
	if knownZones.byName == nil {
		knownZones.byName = make(map[string]*knownZone)
	}
	knownZones.byName[string(name)] = z
	return z, nil
}

func readZone(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	index, err := zoneIndex()
	if err != nil {
		return nil, err
	}
	file := index[name]
	if file == nil {
		return nil, fmt.Errorf("%.80q is %w", name, ErrZone)
	}
	r, err := file.Open()
	if err != nil {
		return nil, fmt.Errorf("open the time zone %s: %w", name, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read the time zone %s: %w", name, err)
	}
	z, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		return nil, fmt.Errorf("read the time zone %s: %w", name, err)
	}
	return z, nil
}
