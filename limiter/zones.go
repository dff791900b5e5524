package limiter

import (
	"sync"

	"github.com/rlnode/rlnode/algorithms"
)

// maxZones bounds the calendars kept for limits that other nodes send; there are about 600 zones and six units.
const maxZones = 4096

// zones keeps the calendars that limits from other nodes name, so that each is looked up once.
type zones struct {
	mu    sync.RWMutex // guards known
	known map[zoneKey]*algorithms.Calendar
}

type zoneKey struct {
	unit algorithms.CalendarUnit
	zone string
}

// calendar returns that of unit in the zone of that name, nil if this node does not know it.
func (z *zones) calendar(unit algorithms.CalendarUnit, zone []byte) *algorithms.Calendar {
	z.mu.RLock()
	c := z.known[zoneKey{unit, string(zone)}]
	z.mu.RUnlock()
	if c != nil {
		return c
	}
	name := string(zone)
	location, err := algorithms.Zone(name)
	if err != nil {
		return nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if c = z.known[zoneKey{unit, name}]; c != nil {
		return c
	}
	if len(z.known) >= maxZones || z.known == nil {
		z.known = make(map[zoneKey]*algorithms.Calendar)
	}
	c = algorithms.NewCalendar(unit, location)
	z.known[zoneKey{unit, name}] = c
	return c
}
