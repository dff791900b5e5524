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

// loadedZones are the zones that were asked for, by name; no more than the database has.
var loadedZones sync.Map

// Zone returns a time zone of the database that is part of this package: every node of a build has the same one, whatever
// its host knows. [time.LoadLocation] would ask the host first. The error wraps [ErrZone].
func Zone(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	if z, ok := loadedZones.Load(name); ok {
		return z.(*time.Location), nil
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
	kept, _ := loadedZones.LoadOrStore(name, z)
	return kept.(*time.Location), nil
}
