package algorithms

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"
)

// The database is pinned, because nodes with different zones end windows at different times.
func TestZonesArePinned(t *testing.T) {
	const version, sum = "2025c", "c6c737c777a4e2ed232fbb5ece42ba5baa62e02cadf2dd1fabce9d1a9f21983f"
	if have := fmt.Sprintf("%x", sha256.Sum256(zonesFile)); ZonesVersion != version || have != sum {
		t.Errorf("have version %s with sum %s; mention a new database in the changelog", ZonesVersion, have)
	}
}

func TestZones(t *testing.T) {
	index, err := zoneIndex()
	if err != nil || len(index) < 550 {
		t.Fatalf("have %d zones, %v", len(index), err)
	}
	for name := range index {
		z, err := Zone(name)
		if err != nil || z.String() != name {
			t.Errorf("%s: have %v, %v", name, z, err)
		}
	}
	for _, name := range []string{"", "Local", "europe/berlin", "Europe", "../Europe/Berlin",
		"right/UTC", "localtime", "Europe/Berlin/"} {
		if _, err := Zone(name); !errors.Is(err, ErrZone) {
			t.Errorf("%q: have %v", name, err)
		}
	}
	berlin, _ := Zone("Europe/Berlin")
	for at, offset := range map[time.Time]int{
		time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC): 7200, time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC): 3600,
		time.Date(2099, 7, 1, 12, 0, 0, 0, time.UTC): 7200,
	} {
		if _, have := at.In(berlin).Zone(); have != offset {
			t.Errorf("%s: have %d s, want %d", at, have, offset)
		}
	}
	if utc, err := Zone("UTC"); utc != time.UTC {
		t.Errorf("UTC: have %v, %v", utc, err)
	}
	if again, _ := Zone("Europe/Berlin"); again != berlin {
		t.Error("the zone is read again each time")
	}
}
